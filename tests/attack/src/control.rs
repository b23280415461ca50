//! The control socket: who opens it may do everything to the switch, but not stop it by mistake, and no other user opens it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    attack,
    attack::{Attack, Field},
    front::{Strike, harm},
    random::Random,
};

/// The class.
pub const ALL: &[Attack] = &[
    attack!(control_garbage, "sends bytes by chance, with and without ends of lines"),
    attack!(control_line_without_end, "sends a request that never ends, megabytes of it"),
    attack!(
        control_line_byte_by_byte,
        "sends a request at ten bytes a second, on sixteen connections"
    ),
    attack!(control_connections_that_say_nothing, "opens 200 connections and says nothing",
        own_share: "who may open the socket may have the whole switch; threads of their own serve it"),
    attack!(control_connects_without_pause, "connects and hangs up as fast as it can"),
    attack!(control_answers_that_nobody_reads, "asks for statistics without pause and reads none"),
    attack!(control_statistics_without_pause, "asks for statistics without pause and reads them",
        own_share: "who may open the socket may have the whole switch; a thread of its own serves it"),
    attack!(control_json_that_is_deep, "sends requests of 30,000 brackets"),
    attack!(
        control_strings_that_are_long,
        "sends names of 60,000 letters, controls and half characters"
    ),
    attack!(control_paths_that_climb, "adds interfaces whose names and sockets lead elsewhere"),
    attack!(
        control_interfaces_that_come_and_go,
        "adds and removes an interface twice a second, as scripts do"
    ),
    attack!(
        control_settings_without_pause,
        "changes filters, rates and VLANs of an interface without pause"
    ),
    attack!(control_by_another_user, "opens the control socket as another user", as_another_user),
    attack!(
        sockets_replaced_by_another_user,
        "removes and replaces sockets as another user",
        as_another_user
    ),
];

fn open(field: &Field) -> Strike<UnixStream> {
    let socket = UnixStream::connect(field.control())?;
    for set in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
        set(&socket, Some(Duration::from_secs(2)))?;
    }
    Ok(socket)
}

/// A request's answer.
fn ask(socket: &UnixStream, request: &str) -> Strike<String> {
    let mut writer = socket;
    writer.write_all(request.as_bytes())?;
    writer.write_all(b"\n")?;
    let mut answer = String::new();
    if BufReader::new(socket).read_line(&mut answer)? == 0 {
        return Err(Errno::CONNRESET.into());
    }
    Ok(answer)
}

/// A request that must not be done.
fn refused(socket: &UnixStream, request: &str) -> Strike {
    let answer = ask(socket, request)?;
    if answer.contains("\"response\":\"error\"") {
        return Ok(());
    }
    harm(format!("{} was answered with {answer}", request.chars().take(100).collect::<String>()))
}

fn control_garbage(field: &Field) -> Strike {
    let mut random = Random::new();
    let mut socket = open(field)?;
    let bytes: Vec<u8> = (0..2000).map(|_| random.next() as u8).collect();
    socket.write_all(&bytes)?;
    let _ = socket.write_all(b"\n{}\n[]\nnull\n");
    let _ = socket.read(&mut [0; 100]);
    Ok(())
}

fn control_line_without_end(field: &Field) -> Strike {
    let mut socket = open(field)?;
    for _ in 0..1000 {
        if socket.write_all(&[b'a'; 65_536]).is_err() {
            return Ok(());
        }
    }
    harm("weir takes 64 MiB of a request")
}

fn control_line_byte_by_byte(field: &Field) -> Strike {
    let mut sockets = (0..16).map(|_| open(field)).collect::<Strike<Vec<_>>>()?;
    for byte in b"{\"request\":\"stats\"}" {
        for socket in &mut sockets {
            let _ = socket.write_all(&[*byte]);
        }
        field.struck();
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn control_connections_that_say_nothing(field: &Field) -> Strike {
    let sockets: Vec<_> = (0..200).filter_map(|_| open(field).ok()).collect();
    std::thread::sleep(Duration::from_millis(20));
    drop(sockets);
    Ok(())
}

fn control_connects_without_pause(field: &Field) -> Strike {
    drop(open(field)?);
    Ok(())
}

fn control_answers_that_nobody_reads(field: &Field) -> Strike {
    let mut socket = open(field)?;
    for _ in 0..200 {
        if socket.write_all(b"{\"request\":\"stats\"}\n").is_err() {
            break;
        }
        field.struck();
    }
    Ok(())
}

fn control_statistics_without_pause(field: &Field) -> Strike {
    let socket = open(field)?;
    loop {
        ask(&socket, "{\"request\":\"stats\"}")?;
        field.struck();
    }
}

fn control_json_that_is_deep(field: &Field) -> Strike {
    for (open_with, close) in [("[", "]"), ("{\"request\":", "}")] {
        let times = 60_000 / (open_with.len() + close.len());
        let deep = format!("{}1{}", open_with.repeat(times), close.repeat(times));
        refused(&open(field)?, &deep)?;
        field.struck();
    }
    Ok(())
}

fn control_strings_that_are_long(field: &Field) -> Strike {
    let socket = open(field)?;
    for name in
        ["a".repeat(60_000), "\\u0007\\u001b[2J".repeat(100), "\\ud800".into(), String::new()]
    {
        refused(&socket, &format!("{{\"request\":\"vif_del\",\"name\":\"{name}\"}}"))?;
        refused(&socket, &format!("{{\"request\":\"vif_explain\",\"name\":\"{name}\"}}"))?;
    }
    Ok(())
}

fn control_paths_that_climb(field: &Field) -> Strike {
    for name in ["../../x", "/tmp/x", ".", "a/b", "a\\u0000b"] {
        added_and_refused(field, name)?;
    }
    Ok(())
}

/// `weir vif add NAME`, as its user has it.
fn added_and_refused(field: &Field, name: &str) -> Strike {
    let output = field
        .weir()
        .args(["vif", "add", &name.replace("\\u0000", "\u{1}"), "--control"])
        .arg(field.control())
        .output()?;
    if output.status.success() { harm(format!("`vif add {name}` succeeds")) } else { Ok(()) }
}

fn control_interfaces_that_come_and_go(field: &Field) -> Strike {
    for verb in ["add", "del"] {
        let output =
            field.weir().args(["vif", verb, "guest", "--control"]).arg(field.control()).output()?;
        if !output.status.success() {
            return harm(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        field.struck();
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

fn control_settings_without_pause(field: &Field) -> Strike {
    let socket = open(field)?;
    let changes = [
        "{\"request\":\"vif_set\",\"name\":\"stormy\",\"changes\":{\"vlan\":{\"access\":2}}}",
        "{\"request\":\"vif_set\",\"name\":\"stormy\",\"changes\":{\"vlan\":{\"access\":1}}}",
        "{\"request\":\"filter_set\",\"name\":\"stormy\",\"rules\":[]}",
        "{\"request\":\"stages\",\"on\":true}",
        "{\"request\":\"stages\",\"on\":false}",
        "{\"request\":\"vif_list\"}",
    ];
    loop {
        for change in changes {
            let answer = ask(&socket, change)?;
            if answer.contains("\"response\":\"error\"") {
                return harm(answer);
            }
        }
        field.struck();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn control_by_another_user(field: &Field) -> Strike {
    let begin = Instant::now();
    match UnixStream::connect(field.control()) {
        Ok(_) => harm("another user opens the control socket"),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => harm(format!("after {:?}: {error}", begin.elapsed())),
    }
}

fn sockets_replaced_by_another_user(field: &Field) -> Strike {
    for name in ["control.sock", "a.sock", "weir.toml", "weir.log"] {
        let path = field.dir().join(name);
        if std::fs::remove_file(&path).is_ok() || std::fs::rename(&path, field.file("x")).is_ok() {
            return harm(format!("another user removes {name}"));
        }
    }
    match std::os::unix::net::UnixListener::bind(field.dir().join("b.sock")) {
        Ok(_) => harm("another user takes a socket's place"),
        Err(_) => Ok(()),
    }
}
