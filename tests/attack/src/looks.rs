//! Observers: captures and traces of frames, and the output of both for frames made to do harm.

use std::{
    io::{BufReader, Write},
    os::unix::net::UnixStream,
    process::Stdio,
    time::Duration,
};

use rustix::io::Errno;

use crate::{
    attack,
    attack::{Attack, Field},
    control::{ask, open, refused, request},
    floods::{couple, loaded, pour, small},
    front::{
        Strike,
        frame::{BROADCAST, EXPERIMENTAL, Header, frame, tcp},
        guest::{Guest, Plan},
        harm,
    },
    measure::switch::answer,
    random::Random,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(captures_that_nobody_reads, "captures the two guests and reads none of it"),
    Attack {
        administers: Some("a capture has 8 MiB for each worker"),
        ..attack!(capture_of_a_flood_that_nobody_reads, "captures its own flood and reads none of it",
            own_share: "what it sends is charged to it, copies included")
    },
    attack!(
        captures_that_come_and_go,
        "begins captures of the two guests and hangs up, without pause"
    ),
    attack!(more_captures_than_there_are, "begins twenty captures at once"),
    attack!(
        captures_that_are_none,
        "asks for captures of ports that there are not, of too many, and by filters that are none"
    ),
    attack!(
        live_trace_that_nobody_reads,
        "follows a guest's frames by a filter that matches all, and reads none"
    ),
    attack!(live_trace_of_a_flood_that_nobody_reads, "follows its own flood and reads none of it",
        own_share: "what it sends is charged to it, clock readings included"),
    attack!(live_traces_that_come_and_go, "begins live traces and hangs up, without pause"),
    attack!(
        frames_that_speak_to_terminals,
        "sends and traces frames full of escapes and markup, and looks at what is shown of them"
    ),
];

/// A started stream of which only the head is read.
fn stream(field: &Field, line: &str, body: &str) -> Strike<UnixStream> {
    let socket = open(field)?;
    (&socket).write_all(request(line, body).as_bytes())?;
    match answer(&mut BufReader::new(&socket))? {
        Some((200, _)) => Ok(socket),
        // The earlier stream has not ended yet.
        Some((409, _)) => Err(Errno::BUSY.into()),
        other => harm(format!("{line} {body} is answered with {other:?}")),
    }
}

fn capture(field: &Field, ports: &[&str]) -> Strike<UnixStream> {
    stream(field, "POST /v1/captures", &format!("{{\"ports\":{ports:?}}}"))
}

fn follow(field: &Field, port: &str) -> Strike<UnixStream> {
    stream(field, &format!("POST /v1/ports/{port}/trace/live"), "{\"frames\":1000}")
}

fn captures_that_nobody_reads(field: &Field) -> Strike {
    let _captures = [capture(field, &["a"])?, capture(field, &["b", "newcomer"])?];
    loop {
        field.struck();
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A flood between two guests of the attacker.
fn flood(field: &Field) -> Strike<(Guest, Guest)> {
    let (from, to) = couple(field, Plan::default(), Plan::default())?;
    loaded(&from, || small(Guest::mac(1)));
    Ok((from, to))
}

fn capture_of_a_flood_that_nobody_reads(field: &Field) -> Strike {
    let (from, to) = flood(field)?;
    let _capture = capture(field, &[&field.evil_name(0), &field.evil_name(1)])?;
    pour(field, &from, Some(&to))
}

fn captures_that_come_and_go(field: &Field) -> Strike {
    drop(capture(field, &["a", "b"])?);
    Ok(())
}

fn more_captures_than_there_are(field: &Field) -> Strike {
    let captures: Vec<_> = (0..20).filter_map(|_| capture(field, &["newcomer"]).ok()).collect();
    match captures.len() {
        0 => Err(Errno::BUSY.into()),
        1..=4 => Ok(()),
        many => harm(format!("{many} captures run at once")),
    }
}

fn captures_that_are_none(field: &Field) -> Strike {
    let many = format!("{{\"ports\":{:?}}}", vec!["a"; 5000]);
    let each: Vec<_> = (0..20).map(|number| format!("evil{number}")).collect();
    let each = format!("{{\"ports\":{each:?}}}");
    let long = format!("{{\"ports\":[\"a\"],\"filter\":\"{}tcp\"}}", "not ".repeat(10_000));
    for body in [
        "{\"ports\":[]}",
        "{\"ports\":[\"\\u001b[2J\"]}",
        "{\"ports\":[\"nobody\"]}",
        "{\"ports\":[\"a\"],\"snap_len\":-1}",
        "{\"ports\":[\"a\"],\"filter\":\"tcp port\"}",
        "{\"ports\":[\"a\"],\"filter\":\"tcp\\u0000port 80\"}",
        "{\"ports\":[\"a\"],\"file\":\"/etc/shadow\"}",
        &many,
        &each,
        &long,
    ] {
        refused(&open(field)?, &request("POST /v1/captures", body))?;
    }
    for frames in ["0", "1001", "-1", "99999999999"] {
        let body = format!("{{\"frames\":{frames}}}");
        refused(&open(field)?, &request("POST /v1/ports/a/trace/live", &body))?;
    }
    Ok(())
}

fn live_trace_that_nobody_reads(field: &Field) -> Strike {
    loop {
        // The trace ends after a thousand frames.
        let _trace = follow(field, "a")?;
        field.struck();
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn live_trace_of_a_flood_that_nobody_reads(field: &Field) -> Strike {
    let (from, to) = flood(field)?;
    let _trace = follow(field, &field.evil_name(0))?;
    pour(field, &from, Some(&to))
}

fn live_traces_that_come_and_go(field: &Field) -> Strike {
    drop(follow(field, "a")?);
    Ok(())
}

/// Text that no terminal may receive.
const SPEECH: &[u8] = b"\x1b[2J\x1b]0;title\x07\x9b31m<script>alert(1)</script>\"'`\r\n\0\x08";

/// Frames with [`SPEECH`] at each place in which a program might look for text.
fn speeches() -> [Vec<u8>; 5] {
    let with = |mut frame: Vec<u8>, at: usize| {
        frame.truncate(at);
        frame.extend(SPEECH.iter().cycle().take(200));
        frame
    };
    let udp = |port: u16| {
        let mut frame = frame(BROADCAST, Guest::mac(0), 0x0800, 14);
        frame.extend([0x45, 0, 0, 200, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([port.to_be_bytes(), port.to_be_bytes(), [0, 180], [0, 0]].concat());
        let len = frame.len();
        with(frame, len)
    };
    [
        with(frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60), 14),
        with(frame(BROADCAST, Guest::mac(0), 0x0806, 60), 14),
        with(tcp(BROADCAST, Guest::mac(0), 60), 54),
        // DHCP and DNS contain names.
        udp(67),
        udp(53),
    ]
}

fn frames_that_speak_to_terminals(field: &Field) -> Strike {
    let (guest, name) = (field.plain()?, field.evil_name(0));
    let shown = |args: &[&str]| -> Strike {
        let mut command = field.weir();
        command.args(args).arg("--control").arg(field.control());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        // Sends more frames than the trace waits for, for as long as the trace lasts.
        for round in 0.. {
            for frame in speeches() {
                guest.send(1, Header::default(), &frame);
            }
            guest.taken(1, "a frame that speaks")?;
            if child.try_wait()?.is_some() {
                break;
            }
            if round > 400 {
                return harm(format!("`weir {}` sees no frame", args.join(" ")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        // weir's own text for a rate below one a second is `<1`.
        let words = text.replace(" <1 ", " 1 ");
        match words.chars().find(|c| c.is_control() && *c != '\n' || *c == '\u{fffd}' || *c == '<')
        {
            Some(c) => harm(format!("`weir {}` shows {c:?}: {text:?}", args.join(" "))),
            None if !output.status.success() => harm(format!("`weir {}`: {text}", args.join(" "))),
            None => Ok(()),
        }
    };
    shown(&["capture", &name, "--tx", "-c", "10"])?;
    shown(&["trace", &name, "--live", "-c", "5"])?;
    let mut random = Random::new();
    let chance: Vec<u8> = (0..120).map(|_| random.next() as u8).collect();
    for frame in speeches().iter().chain([&chance]) {
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        shown(&["trace", &name, "--hex", &hex])?;
    }
    shown(&["stats"])?;
    shown(&["top", "--once"])?;
    // Answers with the switch's own data.
    let socket = open(field)?;
    for look in ["/v1/switch", "/metrics", "/v1/addresses"] {
        let (_, text) = ask(&socket, &request(&format!("GET {look}"), ""))?;
        if let Some(c) = text.chars().find(|c| c.is_control() && *c != '\n') {
            return harm(format!("{look} has {c:?}"));
        }
    }
    Ok(())
}
