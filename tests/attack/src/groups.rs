//! Guests in security groups, and others who want into a group, or want a member's connections.

use std::os::unix::net::UnixStream;

use crate::{
    attack,
    attack::{Attack, Field},
    control::{ask, open, request},
    front::{
        Strike,
        ear::Ear,
        frame::{
            ACK, BROADCAST, EXPERIMENTAL, End, FIN, Header, RST, SYN, datagram, error, fragment,
            frame, framed, ipv4, quoted, segment, udp,
        },
        guest::{Guest, Plan},
        harm,
    },
    measure::switch::{GROUPED, OPEN_PORT, SHUT},
    random::Random,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        half_open_flood_at_an_open_port,
        "opens connections by the hundred thousand at a port that is open, and confirms none"
    ),
    attack!(
        half_open_flood_of_one_guest,
        "fills its own table of connections, to have those of another guest"
    ),
    attack!(
        datagrams_that_push_out_answered_ones,
        "sends datagrams from ever new ports, to push out a conversation"
    ),
    attack!(
        segments_at_closed_ports,
        "sends SYN, FIN, none and all of TCP's flags, without ACK, to ports that are closed"
    ),
    attack!(
        fragments_that_overlap_headers,
        "sends an allowed first fragment, and others that write over its ports"
    ),
    attack!(
        fragments_without_a_first,
        "sends fragments of datagrams whose first one was refused or never came"
    ),
    attack!(
        datagrams_that_never_end,
        "begins more datagrams in fragments than there is room for, and ends none"
    ),
    attack!(
        errors_that_quote_what_nobody_sent,
        "sends ICMP errors whose quotes are forged, cut or another guest's"
    ),
    attack!(
        ports_behind_other_headers,
        "hides ports behind tags, options, tunnels and lengths that lie"
    ),
    attack!(
        rules_that_change_under_a_flood,
        "floods a port while it is closed and opened, and looks for a frame after the answer"
    ),
];

/// A guest in a group, and one outside, which want to talk.
struct Two {
    inside: Ear,
    own: End,
    outside: Ear,
    other: End,
}

fn end(number: u8, port: u16) -> End {
    End { mac: Guest::mac(number), ip: [10, 66, 0, number], port }
}

impl Two {
    fn meet(field: &Field, name: &str) -> Strike<Self> {
        let (own, other) = (end(if name == SHUT { 61 } else { 60 }, 40_000), end(62, 443));
        let inside = Ear::attach(&field.socket(name))?;
        let outside = Ear::attach(&field.evil(0))?;
        let mut two = Self { inside, own, outside, other };
        // Each is known to the switch before it gets a frame.
        for (ear, end) in [(&two.inside, own), (&two.outside, other)] {
            ear.say(&frame(BROADCAST, end.mac, 0x0806, 60))?;
        }
        two.inside.read(|_| ());
        two.connects()?;
        Ok(two)
    }

    /// The guest inside opens a connection, which its group allows.
    fn connects(&mut self) -> Strike {
        let Self { inside, own, outside, other } = self;
        let (syn, both) = (segment(*own, *other, SYN, b""), segment(*other, *own, SYN | ACK, b""));
        outside.must_hear(inside, &syn, "a guest cannot open a connection")?;
        inside.must_hear(outside, &both, "a guest that opens a connection gets no answer")?;
        inside.say(&segment(*own, *other, ACK, b""))?;
        // An answer of UDP passes only while its question is known. A TCP segment is accepted in the middle of a
        // connection.
        let asks = datagram(*own, *other, b"a question");
        outside.must_hear(inside, &asks, "a guest cannot ask")?;
        self.goes_on("at its beginning")
    }

    fn goes_on(&mut self, when: &str) -> Strike {
        let Self { inside, own, outside, other } = self;
        let lost = format!("a connection is lost {when}");
        inside.must_hear(outside, &segment(*other, *own, ACK, b"the answer"), &lost)?;
        inside.must_hear(outside, &datagram(*other, *own, b"the answer"), &lost)
    }
}

/// A strange address that has not been there yet.
fn stranger(random: &mut Random, mac: crate::front::frame::Mac) -> End {
    let [a, b, c, d, ..] = random.next().to_be_bytes();
    End { mac, ip: [100, a, b, c.max(1)], port: 1024 | u16::from_be_bytes([c, d]) }
}

fn half_open_flood_at_an_open_port(field: &Field) -> Strike {
    let mut two = Two::meet(field, GROUPED)?;
    let (flood, mut random) = (Guest::attach(&field.evil(1), Plan::default())?, Random::new());
    let to = two.own.at(OPEN_PORT);
    loop {
        for _ in 0..16 {
            flood.load(1, |_| {
                let from = stranger(&mut random, Guest::mac(63));
                (Header::default(), segment(from, to, SYN, b""))
            });
            two.inside.flooded_by(&flood)?;
        }
        two.goes_on("to a flood of half-open ones")?;
        field.struck();
    }
}

fn half_open_flood_of_one_guest(field: &Field) -> Strike {
    let mut two = Two::meet(field, GROUPED)?;
    let flood = Guest::attach(&field.socket(SHUT), Plan::default())?;
    let (own, mut random) = (end(61, 1), Random::new());
    let mut port = 1024;
    loop {
        for _ in 0..16 {
            flood.load(1, |_| {
                let to = stranger(&mut random, Guest::mac(62));
                (Header::default(), segment(own.at(to.port ^ 7), to, SYN, b""))
            });
            two.outside.flooded_by(&flood)?;
        }
        two.goes_on("to another guest's flood")?;
        port = if port == u16::MAX { 1024 } else { port + 1 };
        two.own = two.own.at(port);
        two.connects()?;
        field.struck();
    }
}

fn datagrams_that_push_out_answered_ones(field: &Field) -> Strike {
    let mut two = Two::meet(field, GROUPED)?;
    let (flood, mut random) = (Guest::attach(&field.evil(1), Plan::default())?, Random::new());
    let own = two.own;
    loop {
        for _ in 0..16 {
            flood.load(1, |_| {
                let from = stranger(&mut random, Guest::mac(63));
                (Header::default(), datagram(from, own.at(OPEN_PORT), b"flood"))
            });
            two.inside.flooded_by(&flood)?;
        }
        two.goes_on("to a flood of datagrams")?;
        field.struck();
    }
}

fn segments_at_closed_ports(field: &Field) -> Strike {
    let mut two = Two::meet(field, SHUT)?;
    let mut random = Random::new();
    let last = segment(two.other, two.own, ACK, b"the last");
    loop {
        let flags = [SYN, SYN | FIN, FIN, 0, 0xff, RST | SYN, SYN | 0xc0, SYN | 8];
        let frames: Vec<_> = flags
            .into_iter()
            .map(|flags| {
                let to = two.own.at(random.next() as u16);
                segment(two.other.at(random.next() as u16 | 1), to, flags, b"")
            })
            .collect();
        let Two { inside, outside, .. } = &mut two;
        inside.must_not_hear(outside, &frames, &last, "a segment for a closed port arrives")?;
        field.struck();
    }
}

fn fragments_that_overlap_headers(field: &Field) -> Strike {
    let mut two = Two::meet(field, GROUPED)?;
    let (from, to) = (two.other.at(7000), two.own.at(OPEN_PORT));
    let last = segment(two.other, two.own, ACK, b"the last");
    // The datagrams of an earlier attacker may still be noted.
    let mut id = Random::new().next() as u16;
    loop {
        id = id.wrapping_add(1);
        let first = udp(from, to, &[1; 56]);
        let mut closed = udp(from, to.at(22), &[2; 56]);
        closed[4..6].copy_from_slice(&64_u16.to_be_bytes());
        let Two { inside, outside, .. } = &mut two;
        let begin = fragment(from, to, id, 0, true, &first);
        inside.must_hear(outside, &begin, "an allowed first fragment does not arrive")?;
        let frames = [
            fragment(from, to, id, 0, true, &closed),
            fragment(from, to, id, 1, true, &closed[8..]),
            fragment(from, to, id, 7, false, &[3; 16]),
            fragment(from, to, id, 0, false, &closed),
        ];
        inside.must_not_hear(outside, &frames, &last, "a fragment over another one arrives")?;
        field.struck();
    }
}

fn fragments_without_a_first(field: &Field) -> Strike {
    let mut two = Two::meet(field, SHUT)?;
    let (from, to) = (two.other.at(7000), two.own.at(22));
    let last = segment(two.other, two.own, ACK, b"the last");
    let mut id = 0_u16;
    loop {
        id = id.wrapping_add(1);
        let frames = [
            fragment(from, to, id, 0, true, &udp(from, to, &[1; 56])),
            fragment(from, to, id, 8, true, &[2; 64]),
            fragment(from, to, id, 16, false, &[3; 64]),
            fragment(from, to, id ^ 0x8000, 1, false, &[4; 64]),
        ];
        let Two { inside, outside, .. } = &mut two;
        inside.must_not_hear(outside, &frames, &last, "a fragment of what is refused arrives")?;
        field.struck();
    }
}

fn datagrams_that_never_end(field: &Field) -> Strike {
    let mut two = Two::meet(field, GROUPED)?;
    let (flood, mut id) = (Guest::attach(&field.evil(1), Plan::default())?, 0_u16);
    let (from, to) = (end(63, 7000), two.own.at(OPEN_PORT));
    loop {
        flood.load(1, |_| {
            id = id.wrapping_add(1);
            (Header::default(), fragment(from, to, id, 0, true, &udp(from, to, &[1; 56])))
        });
        two.inside.flooded_by(&flood)?;
        two.goes_on("to datagrams that never end")?;
        // A datagram that is not fragmented needs none of that room.
        let Two { inside, outside, own, other } = &mut two;
        let whole = datagram(other.at(7001), own.at(OPEN_PORT), b"whole");
        inside.must_hear(outside, &whole, "a whole datagram is lost to those that never end")?;
        field.struck();
    }
}

fn errors_that_quote_what_nobody_sent(field: &Field) -> Strike {
    let mut two = Two::meet(field, GROUPED)?;
    let router = end(63, 0);
    let (own, other) = (two.own, two.other);
    let last = segment(other, own, ACK, b"the last");
    let sent = quoted(own, other, ACK);
    let good = error(End { mac: other.mac, ..router }, own, [3, 4], &sent);
    let Two { inside, outside, .. } = &mut two;
    inside.must_hear(outside, &good, "an error about a packet that was sent does not arrive")?;
    let from = End { mac: other.mac, ..router };
    let about = |quote: &[u8]| error(from, own, [3, 4], quote);
    loop {
        let frames = [
            about(&quoted(own.at(own.port ^ 1), other, ACK)),
            about(&quoted(own, other.at(444), ACK)),
            about(&quoted(End { ip: [10, 66, 0, 99], ..own }, other, ACK)),
            about(&quoted(other, own, ACK)),
            about(&sent[..19]),
            about(&sent[..22]),
            about(&[]),
            about(&[&[0x65], &sent[1..]].concat()),
            about(&[&[0x4f], &sent[1..]].concat()),
            about(&error(from, own, [3, 4], &sent)[14..]),
        ];
        inside.must_not_hear(outside, &frames, &last, "an error about nothing arrives")?;
        field.struck();
    }
}

fn ports_behind_other_headers(field: &Field) -> Strike {
    let mut two = Two::meet(field, SHUT)?;
    let (from, to) = (two.other, two.own.at(22));
    let last = segment(two.other, two.own, ACK, b"the last");
    let closed = segment(from, to, SYN, b"hidden");
    let packet = &closed[14..];
    let with_tag = |tags: &[u16]| {
        let mut bytes = closed[..12].to_vec();
        for tag in tags {
            bytes.extend(tag.to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend(&closed[12..]);
        bytes
    };
    let with = |at: usize, value: u8| {
        let mut bytes = closed.clone();
        bytes[at] = value;
        bytes
    };
    let mut v6 = frame(to.mac, from.mac, 0x86dd, 14);
    v6.extend([0x60, 0, 0, 0, 0, 96, 0, 64]);
    v6.extend([0xfd; 32]);
    // Destination options in a chain, and TCP behind them.
    v6.extend([60, 0, 1, 4, 0, 0, 0, 0].repeat(9));
    v6.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    v6.extend(&packet[20..40]);
    let frames = [
        with_tag(&[0x8100]),
        with_tag(&[0x8100, 0x8100]),
        with_tag(&[0x88a8, 0x8100]),
        with(14, 0x4f),
        with(14, 0x44),
        with(17, 20),
        with(14, 0x65),
        framed(from, to, &ipv4(from, to, 4, packet)),
        framed(from, to, &ipv4(from, to, 47, &[&[0, 0, 8, 0], packet].concat())),
        framed(from, to, &ipv4(from, to, 51, packet)),
        frame(to.mac, from.mac, EXPERIMENTAL, 60),
        v6,
    ];
    loop {
        let Two { inside, outside, .. } = &mut two;
        inside.must_not_hear(outside, &frames, &last, "a closed port is reached by a detour")?;
        field.struck();
    }
}

/// Puts the grouped guest into one of the groups.
fn put_into(socket: &UnixStream, group: &str) -> Strike {
    let line = format!("PATCH /v1/vifs/{GROUPED}");
    match ask(socket, &request(&line, &format!("{{\"groups\":{{\"set\":[{group:?}]}}}}")))? {
        (200, _) => Ok(()),
        (status, answer) => harm(format!("{line}: {status} {answer}")),
    }
}

fn rules_that_change_under_a_flood(field: &Field) -> Strike {
    let mut two = Two::meet(field, GROUPED)?;
    let (flood, mut random) = (Guest::attach(&field.evil(1), Plan::default())?, Random::new());
    let to = two.own.at(OPEN_PORT);
    let changed = (|| -> Strike {
        let socket = open(field)?;
        for _ in 0..8 {
            flood.load(1, |_| {
                let from = stranger(&mut random, Guest::mac(63));
                (Header::default(), segment(from, to, SYN, b""))
            });
            for _ in 0..8 {
                two.inside.flooded_by(&flood)?;
            }
            put_into(&socket, "closed")?;
            let Two { inside, outside, own, other } = &mut two;
            let last = segment(*other, *own, ACK, b"the last");
            let late: Vec<_> = (0..16)
                .map(|_| segment(stranger(&mut random, other.mac), to, SYN, b"late"))
                .collect();
            inside.must_not_hear(outside, &late, &last, "a port is open after the answer")?;
            put_into(&socket, "web")?;
            let early = segment(stranger(&mut random, other.mac), to, SYN, b"early");
            inside.must_hear(outside, &early, "a port is closed after the answer")?;
            field.struck();
        }
        Ok(())
    })();
    // Other attacks find the group as it was.
    put_into(&open(field)?, "web")?;
    changed
}
