//! Text of agents and front ends in weir's log: it must be as limited as other text, and must not look like weir's
//! own.

use std::{io::Write, os::unix::net::UnixStream, time::Duration};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike, harm,
        link::{Link, request},
    },
    measure::switch::{EVILS, TENANTS},
    slow_closes::GREETING,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        an_agents_words_that_are_weirs,
        "greets with a name that holds fields and lines of weir's log, and looks for them there"
    ),
    attack!(
        an_agents_words_for_a_terminal,
        "greets with escapes, controls and marks of direction in its name"
    ),
    attack!(greetings_without_pause, "connects as an agent, greets and hangs up, without pause"),
    attack!(greetings_again_and_again, "greets again and again on one connection"),
    attack!(lines_that_are_no_messages, "sends lines that are none, and connects again"),
    attack!(agents_of_20_machines_that_fail, "has 20 machines' agents fail, for the log"),
    attack!(lines_without_end, "sends agent's lines that never end, megabytes of them"),
    attack!(
        sessions_of_a_hundred_interfaces_that_end_badly,
        "has 100 interfaces end sessions by bad messages, for the log"
    ),
];

fn agent(field: &Field, number: usize) -> Strike<UnixStream> {
    let socket = UnixStream::connect(field.agent(number))?;
    socket.set_write_timeout(Some(Duration::from_secs(2)))?;
    Ok(socket)
}

/// The greeting of an agent with the name `word`, in JSON's escapes.
fn greeting(word: &str) -> String {
    GREETING
        .replace("\"agent\":\"1\"", &format!("\"agent\":\"{word}\""))
        .replace("\"kernel\":\"6\"", &format!("\"kernel\":\"{word}\""))
}

/// Sends the greeting. No line of weir's log may then satisfy `bad`.
fn greeted(field: &Field, word: &str, bad: impl Fn(&str) -> bool) -> Strike {
    let mut socket = agent(field, 0)?;
    socket.write_all(greeting(word).as_bytes())?;
    std::thread::sleep(Duration::from_millis(100));
    socket.write_all(format!("{{\"message\":\"{word}\"}}\n").as_bytes())?;
    std::thread::sleep(Duration::from_millis(100));
    field.struck();
    let log = std::fs::read(field.dir().join("weir.log"))?;
    let log = String::from_utf8_lossy(&log);
    match log.lines().find(|line| bad(line)) {
        Some(line) => harm(format!("the log has {line:?}")),
        None => Ok(()),
    }
}

fn an_agents_words_that_are_weirs(field: &Field) -> Strike {
    // Behind this mark, unquoted text would look like a separate field of the log line.
    let word = "1 stopped=yes port=a reason=forged";
    let forged = |line: &str| {
        let quotes = line.split("stopped=yes").next().unwrap_or(line).matches('"').count();
        line.contains(" stopped=yes") && quotes.is_multiple_of(2)
    };
    greeted(field, word, forged)?;
    std::thread::sleep(Duration::from_millis(1100));
    greeted(field, "x\\nforged: web0: stopped", |line| line.starts_with("forged:"))?;
    std::thread::sleep(Duration::from_millis(1100));
    let closes = "1\\\" stopped=yes reason=\\\"";
    greeted(field, closes, |line| line.contains("1\" stopped=yes"))
}

fn an_agents_words_for_a_terminal(field: &Field) -> Strike {
    let word = "\\u001b[2J\\u0007\\u009b31m\\u202e\\u2066x";
    let speaks = |c: char| {
        c.is_control()
            || ('\u{202a}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    greeted(field, word, |line| line.chars().any(|c| speaks(c) && c != '\t'))
}

fn greetings_without_pause(field: &Field) -> Strike {
    for number in 0..EVILS {
        agent(field, number)?.write_all(GREETING.as_bytes())?;
    }
    Ok(())
}

fn greetings_again_and_again(field: &Field) -> Strike {
    let mut socket = agent(field, 0)?;
    while socket.write_all(GREETING.repeat(16).as_bytes()).is_ok() {
        field.struck();
    }
    Ok(())
}

fn lines_that_are_no_messages(field: &Field) -> Strike {
    for line in ["{}\n", "\n", "null\n", "\u{1b}[2J\n", "{\"message\":\"report\"}\n"] {
        let _ = agent(field, 0)?.write_all(line.as_bytes());
        field.struck();
    }
    Ok(())
}

fn agents_of_20_machines_that_fail(field: &Field) -> Strike {
    for number in 0..EVILS {
        let mut socket = agent(field, number)?;
        let _ = socket.write_all(GREETING.as_bytes());
        let _ = socket.write_all(b"forged: this is no message\n");
        field.struck();
    }
    Ok(())
}

fn lines_without_end(field: &Field) -> Strike {
    let mut socket = agent(field, 0)?;
    for _ in 0..1024 {
        if socket.write_all(&[b'a'; 65_536]).is_err() {
            return Ok(());
        }
    }
    harm("weir takes 64 MiB of a line")
}

fn sessions_of_a_hundred_interfaces_that_end_badly(field: &Field) -> Strike {
    for number in 0..TENANTS {
        let link = Link::connect(&field.tenant(number))?;
        link.tell_u64(request::SET_FEATURES, u64::MAX)?;
        field.struck();
    }
    Ok(())
}
