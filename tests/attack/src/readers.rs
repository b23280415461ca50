//! Users who may only read, and the cost of their requests.

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::Duration,
};

use rustix::io::Errno;

use crate::{
    attack,
    attack::{Attack, Field},
    control::{ask, open, request},
    front::{Strike, harm},
    measure::switch::API_PORT,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        difference_with_dear_expressions,
        "asks for the difference to a file whose filters are dear to compile",
        as_reader
    ),
    attack!(
        difference_with_many_expressions,
        "asks for the difference to a file with thousands of filters",
        as_reader
    ),
    attack!(difference_of_many_tables, "the same with 1 MiB of tables", as_reader),
    attack!(difference_of_deep_arrays, "the same with half a million brackets", as_reader),
    attack!(difference_of_dotted_keys, "the same with keys of thousands of parts", as_reader),
    attack!(difference_of_mistakes, "the same with a mistake in each of 100,000 lines", as_reader),
    attack!(difference_of_one_string, "the same with one string of 1 MiB, in escapes", as_reader),
    attack!(
        difference_of_addresses,
        "the same with a hundred thousand addresses, which are compared with each other",
        as_reader
    ),
    attack!(
        differences_by_many_connections,
        "asks for dear differences on 32 connections at once",
        as_reader
    ),
    attack!(
        bodies_that_never_come,
        "announces 1 MiB on 40 connections, and sends a byte at a time",
        as_reader
    ),
    attack!(floods_of_statistics, "asks for statistics by eight threads", as_reader),
    attack!(floods_of_metrics, "asks for metrics by eight threads", as_reader),
    attack!(floods_of_every_look, "asks for all that may be read, by eight threads", as_reader),
    attack!(
        answers_that_nobody_reads,
        "asks for all counters on 28 connections, and takes none of the answers",
        as_reader
    ),
    attack!(
        requests_in_one_write,
        "sends a thousand requests at once on each of 30 connections, and reads none",
        as_reader
    ),
    attack!(
        a_thousand_streams_by_a_reader,
        "opens a thousand streams of events, and keeps them open",
        as_reader
    ),
    attack!(
        connections_by_a_reader_without_pause,
        "connects and hangs up as fast as it can",
        as_reader
    ),
];

/// Attacks over TCP.
pub const OF_OPTIONS: &[Attack] = &[
    attack!(
        tcp_without_a_token,
        "asks over TCP without the token, and by guessed ones",
        as_another_user
    ),
    attack!(tcp_connections_that_say_nothing, "opens 200 connections over TCP", as_another_user),
    attack!(tcp_heads_byte_by_byte, "sends heads over TCP, a byte at a time", as_another_user),
    attack!(tcp_connects_without_pause, "connects over TCP and resets", as_another_user),
    attack!(tcp_heads_without_end, "sends heads over TCP that never end", as_another_user),
];

const BODY_MAX: usize = 1 << 20;

/// Requests the difference to `text`, and waits for any result.
fn differs(field: &Field, text: &str) -> Strike {
    let socket = open(field)?;
    // The wait has no short limit: other users are measured meanwhile.
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    field.struck();
    match ask(&socket, &request("POST /v1/configuration/difference", text)) {
        Ok(_) => Ok(()),
        Err(crate::front::Miss::Refused(Errno::AGAIN)) => harm("no answer in 20 s"),
        // weir disconnects.
        Err(_) => Ok(()),
    }
}

/// The longest permitted expression, on which libpcap's optimizer spends a tenth of a second.
fn dear(first: usize) -> String {
    let mut expression = format!("not port {}", first % 60_000 + 1);
    for port in 1.. {
        let next = format!(" and not port {port}");
        if expression.len() + next.len() > 1024 {
            break;
        }
        expression += &next;
    }
    expression
}

/// 1 MiB of such expressions, each different.
fn dear_filters() -> String {
    repeated(|number| {
        let vif = number / 30;
        let head = if number % 30 == 0 { format!("[vif.x{vif}]\n") } else { String::new() };
        format!(
            "{head}[[vif.x{vif}.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = {:?}\n",
            dear(number)
        )
    })
}

fn difference_with_dear_expressions(field: &Field) -> Strike {
    differs(field, &dear_filters())
}

fn difference_with_many_expressions(field: &Field) -> Strike {
    let mut text = String::new();
    for vif in 0..100 {
        let _ = writeln!(text, "[vif.x{vif}]");
        for port in 0..30 {
            let _ = write!(
                text,
                "[[vif.x{vif}.filter]]\ndirection = \"rx\"\naction = \"drop\"\n\
                 match = \"tcp portrange {port}-6{port:04} or host 10.{vif}.{port}.1\"\n"
            );
        }
    }
    differs(field, &text)
}

fn repeated(mut each: impl FnMut(usize) -> String) -> String {
    let mut text = String::new();
    for number in 0.. {
        let next = each(number);
        if text.len() + next.len() > BODY_MAX {
            break;
        }
        text += &next;
    }
    text
}

fn difference_of_many_tables(field: &Field) -> Strike {
    differs(field, &repeated(|number| format!("[vif.v{number}]\n")))
}

fn difference_of_deep_arrays(field: &Field) -> Strike {
    differs(
        field,
        &format!("a = {}{}", "[".repeat(BODY_MAX / 2 - 8), "]".repeat(BODY_MAX / 2 - 8)),
    )?;
    differs(field, &format!("a = [{}]", "[],".repeat(BODY_MAX / 3 - 8)))
}

fn difference_of_dotted_keys(field: &Field) -> Strike {
    differs(field, &format!("{}a = 1\n", "a.".repeat(BODY_MAX / 2 - 8)))?;
    differs(field, &repeated(|number| format!("{}k{number} = 1\n", "a.".repeat(60))))
}

fn difference_of_mistakes(field: &Field) -> Strike {
    differs(field, &repeated(|number| format!("k{number}=1\n")))?;
    differs(
        field,
        &format!(
            "[vif.a]\n{}",
            repeated(|number| format!("m{number}=x\n")).get(16..).unwrap_or("")
        ),
    )
}

fn difference_of_one_string(field: &Field) -> Strike {
    differs(field, &format!("a = \"{}\"", "\\u0041".repeat(BODY_MAX / 6 - 8)))?;
    differs(field, &"#".repeat(BODY_MAX))
}

fn difference_of_addresses(field: &Field) -> Strike {
    let table = |number: usize| {
        let [.., a, b, c] = number.to_be_bytes();
        format!(
            "[vif.v{number}]\nmac = \"02:00:00:{a:02x}:{b:02x}:{c:02x}\"\naddresses = [\"10.{a}.{b}.{c}\"]\n"
        )
    };
    differs(field, &repeated(table))
}

/// Runs `threads` threads that call `each` again and again.
fn together(threads: usize, each: impl Fn(usize) -> Strike + Sync) -> Strike {
    std::thread::scope(|scope| {
        for number in 0..threads {
            let each = &each;
            scope.spawn(move || {
                loop {
                    if each(number).is_err() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
    });
    Ok(())
}

fn differences_by_many_connections(field: &Field) -> Strike {
    let texts = [
        dear_filters(),
        repeated(|number| format!("[vif.v{number}]\n")),
        repeated(|number| format!("k{number}=1\n")),
    ];
    together(32, |number| {
        let socket = open(field)?;
        let text = &texts[number % texts.len()];
        let mut writer = &socket;
        field.struck();
        writer.write_all(request("POST /v1/configuration/difference", text).as_bytes())?;
        let _ = writer.read(&mut [0; 4096]);
        Ok(())
    })
}

fn bodies_that_never_come(field: &Field) -> Strike {
    let mut sockets = (0..40).map(|_| open(field)).collect::<Strike<Vec<_>>>()?;
    let head = format!(
        "POST /v1/configuration/difference HTTP/1.1\r\nhost: w\r\ncontent-length: {BODY_MAX}\r\n\r\n"
    );
    for socket in &mut sockets {
        let _ = socket.write_all(head.as_bytes());
    }
    for _ in 0..20 {
        for socket in &mut sockets {
            let _ = socket.write_all(b"#");
        }
        field.struck();
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Requests by eight threads, each on its own connections.
fn floods(field: &Field, looks: &[&str]) -> Strike {
    together(8, |_| {
        let socket = open(field)?;
        for look in looks.iter().cycle().take(1000) {
            ask(&socket, &request(&format!("GET {look}"), ""))?;
            field.struck();
        }
        Ok(())
    })
}

fn floods_of_statistics(field: &Field) -> Strike {
    floods(field, &["/v1/switch"])
}

fn floods_of_metrics(field: &Field) -> Strike {
    floods(field, &["/metrics"])
}

/// Everything that readers may request.
const LOOKS: [&str; 14] = [
    "/",
    "/page/script.js",
    "/metrics",
    "/openapi.json",
    "/v1/switch",
    "/v1/ports",
    "/v1/ports/a",
    "/v1/ports/a/queues",
    "/v1/ports/a/policies",
    "/v1/ports/a/filter",
    "/v1/drops",
    "/v1/addresses",
    "/v1/vifs",
    "/v1/configuration",
];

fn floods_of_every_look(field: &Field) -> Strike {
    floods(field, &LOOKS)
}

fn requests_in_one_write(field: &Field) -> Strike {
    let many: String =
        LOOKS.iter().cycle().take(1000).map(|look| request(&format!("GET {look}"), "")).collect();
    let mut sockets = Vec::new();
    for _ in 0..30 {
        let mut socket = open(field)?;
        socket.set_nonblocking(true)?;
        let _ = socket.write(many.as_bytes());
        sockets.push(socket);
        field.struck();
    }
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

fn a_thousand_streams_by_a_reader(field: &Field) -> Strike {
    let mut sockets = Vec::<UnixStream>::new();
    for _ in 0..1000 {
        let mut socket = open(field)?;
        let _ = socket.write_all(request("GET /v1/events", "").as_bytes());
        sockets.push(socket);
        field.struck();
    }
    std::thread::sleep(Duration::from_millis(100));
    Ok(())
}

fn connections_by_a_reader_without_pause(field: &Field) -> Strike {
    drop(open(field)?);
    Ok(())
}

fn dial(field: &Field) -> Strike<TcpStream> {
    let socket = TcpStream::connect(("127.0.0.1", field.port(API_PORT)?))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.set_write_timeout(Some(Duration::from_secs(2)))?;
    Ok(socket)
}

fn tcp_without_a_token(field: &Field) -> Strike {
    for token in ["", "authorization: Bearer \r\n", "authorization: Bearer 0123456789abcdef\r\n"] {
        for line in ["GET /v1/switch", "GET /metrics", "DELETE /v1/vifs/a", "GET /v1/configuration"]
        {
            let mut socket = dial(field)?;
            let head =
                format!("{line} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{token}\r\n");
            socket.write_all(head.as_bytes())?;
            let mut answer = [0; 64];
            let len = socket.read(&mut answer)?;
            let answer =
                String::from_utf8_lossy(answer.get(..len).unwrap_or_default()).into_owned();
            if !answer.starts_with("HTTP/1.1 4") {
                return harm(format!("{line} without the token is answered with {answer:?}"));
            }
            field.struck();
        }
    }
    Ok(())
}

fn tcp_connections_that_say_nothing(field: &Field) -> Strike {
    let sockets: Vec<_> = (0..200).filter_map(|_| dial(field).ok()).collect();
    field.struck();
    std::thread::sleep(Duration::from_millis(100));
    drop(sockets);
    Ok(())
}

fn tcp_heads_byte_by_byte(field: &Field) -> Strike {
    let mut sockets = (0..40).map(|_| dial(field)).collect::<Strike<Vec<_>>>()?;
    for byte in b"GET /v1/switch HTTP" {
        for socket in &mut sockets {
            let _ = socket.write_all(&[*byte]);
        }
        field.struck();
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn tcp_connects_without_pause(field: &Field) -> Strike {
    let socket = dial(field)?;
    // The connection ends by a reset, so that no port of this host stays in TIME_WAIT.
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(())
}

fn tcp_heads_without_end(field: &Field) -> Strike {
    let mut socket = dial(field)?;
    for _ in 0..1024 {
        if socket.write_all(&[b'a'; 65_536]).is_err() {
            return Ok(());
        }
    }
    harm("weir takes 64 MiB of a head")
}

fn answers_that_nobody_reads(field: &Field) -> Strike {
    let mut all = Vec::new();
    for _ in 0..28 {
        let mut socket = open(field)?;
        let _ = socket.write_all(request("GET /metrics", "").as_bytes());
        // The answer has begun.
        socket.read_exact(&mut [0])?;
        all.push(socket);
    }
    let (_, text) = ask(&open(field)?, &request("GET /v1/switch", ""))?;
    let stats: serde_json::Value = serde_json::from_str(&text).map_err(|_| Errno::BADMSG)?;
    let of = |end: &str| {
        let path = format!("/limits/control_unread_bytes/{end}");
        stats.pointer(&path).and_then(serde_json::Value::as_u64).ok_or(Errno::NOMSG)
    };
    let (used, max) = (of("used")?, of("max")?);
    if used > max {
        return harm(format!("{used} bytes of answers wait for readers, of at most {max}"));
    }
    field.struck();
    Ok(())
}
