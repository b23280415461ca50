//! Frames that a switch between tenants must drop, and frames that must not harm it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        ear::Ear,
        frame::{BROADCAST, EXPERIMENTAL, Header, Mac, frame, tagged, tcp},
        guest::{Guest, Plan},
        harm,
        link::{Link, request},
    },
    measure::switch::{ADDRESSES, FENCED, GATEWAY},
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        sources_of_the_victims,
        "sends from the addresses of the two who talk, to have their frames"
    ),
    attack!(the_gateways_address, "sends from the gateway's address, and asks for its frames"),
    attack!(sources_that_are_groups, "sends from broadcast and multicast addresses, and from 0"),
    attack!(sources_that_change, "sends from another address with each frame"),
    attack!(
        a_hundred_thousand_addresses,
        "sends from 100,000 addresses where the source is not checked"
    ),
    attack!(addresses_that_flap, "sends from the same addresses at two interfaces in turn"),
    attack!(
        two_interfaces_that_are_bridged,
        "passes on what it gets between two interfaces: a loop"
    ),
    attack!(tags_on_an_access_port, "sends frames of all VLANs, 802.1Q and 802.1ad"),
    attack!(tags_behind_tags, "sends frames with two, three and twenty tags"),
    attack!(tags_behind_priority_tags, "hides a tag behind one or two whose VLAN is 0"),
    attack!(tags_of_a_trunk_that_are_not_its_own, "sends to VLANs that a trunk does not have"),
    attack!(bridge_and_slow_protocols, "sends BPDUs, LACP, pause frames and LLDP"),
    attack!(
        fences_between_tenants,
        "sends to another isolated guest: broadcast, multicast, unknown, ARP, neighbour discovery"
    ),
    attack!(runts, "sends frames of 0 to 25 bytes with their header"),
    attack!(giants, "sends frames of 65,536 bytes to 1 MiB"),
    attack!(checksums_outside_the_frame, "asks for checksums before, in and behind the frame"),
    attack!(
        segments_of_one_byte,
        "asks to have 60,000 bytes cut into segments of 0, 1 and 8 bytes"
    ),
    attack!(gso_of_what_is_no_tcp, "asks to have ARP, UDP, fragments and nonsense cut as TCP"),
    attack!(headers_that_end_in_the_middle, "sends IP and TCP headers whose lengths lie"),
    attack!(ipv6_extensions_without_end, "sends IPv6 with a hundred extension headers"),
    attack!(containers_that_lie, "agrees on containers and sends frames as if they were some"),
];

/// A guest that sends `frames` again and again. Each must be used before the next.
fn send(field: &Field, socket: &Path, frames: &[(Header, Vec<u8>)]) -> Strike {
    let guest = Guest::attach(socket, Plan::default())?;
    loop {
        for (header, bytes) in frames {
            guest.send(1, *header, bytes);
            guest.taken(1, "a frame")?;
        }
        guest.repost(0);
        field.struck();
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn plain(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<(Header, Vec<u8>)> {
    frames.into_iter().map(|bytes| (Header::default(), bytes)).collect()
}

fn sources_of_the_victims(field: &Field) -> Strike {
    let frames = ADDRESSES.map(|mac| frame(BROADCAST, mac, EXPERIMENTAL, 60));
    send(field, &field.evil(0), &plain(frames))
}

fn the_gateways_address(field: &Field) -> Strike {
    let mut arp = frame(BROADCAST, GATEWAY, 0x0806, 14);
    arp.extend([0, 1, 8, 0, 6, 4, 0, 2]);
    for mac in [GATEWAY, BROADCAST] {
        arp.extend(mac);
        arp.extend([10, 0, 0, 1]);
    }
    arp.resize(60, 0);
    send(field, &field.evil(0), &plain([arp, frame(ADDRESSES[0], GATEWAY, EXPERIMENTAL, 60)]))
}

/// A message of neighbour discovery, without a checksum.
fn discovery(to: Mac, from: Mac, kind: u8) -> Vec<u8> {
    let mut bytes = frame(to, from, 0x86dd, 14);
    bytes.extend([0x60, 0, 0, 0, 0, 24, 58, 255]);
    let address = |mac: Mac| [&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0][..], &mac].concat();
    bytes.extend(
        [address(from), address(to), vec![kind, 0, 0, 0, 0, 0, 0, 0], address(to)].concat(),
    );
    bytes
}

fn fences_between_tenants(field: &Field) -> Strike {
    let [own, other, third] = [70, 71, 72].map(Guest::mac);
    let attach = |name| Ear::attach(&field.socket(name));
    let (mut victim, attacker, witness) =
        (attach(FENCED[0])?, attach(FENCED[1])?, attach(FENCED[2])?);
    for (ear, mac) in [(&victim, own), (&attacker, other), (&witness, third)] {
        ear.say(&frame(BROADCAST, mac, EXPERIMENTAL, 60))?;
    }
    let unknown = [2, 0xee, 0, 0, 0, 9];
    let groups = [BROADCAST, [1, 0, 0x5e, 1, 2, 3], [0x33, 0x33, 0, 0, 0, 1], unknown, own];
    let mut frames: Vec<_> = groups.iter().map(|to| frame(*to, other, EXPERIMENTAL, 60)).collect();
    for to in groups {
        frames.push(frame(to, other, 0x0806, 60));
        frames.extend([133, 134, 135, 136].map(|kind| discovery(to, other, kind)));
        frames.push(tagged(to, other, &[(0x8100, 0)], 60));
        frames.push(tagged(to, other, &[(0x8100, 24)], 60));
        // These frames have the address of the guest that may send them.
        frames.push(frame(to, third, EXPERIMENTAL, 61));
    }
    let mut number = 0_u16;
    loop {
        for bytes in &frames {
            attacker.say(bytes)?;
        }
        // The last frame shows that the victim receives frames, and has received the earlier ones.
        number = number.wrapping_add(1);
        let mut last = frame(own, third, EXPERIMENTAL, 60);
        last[58..].copy_from_slice(&number.to_be_bytes());
        let (mut wrong, mut heard) = (None, false);
        let end = Instant::now() + Duration::from_secs(2);
        while !heard && Instant::now() < end {
            witness.say(&last)?;
            std::thread::sleep(Duration::from_micros(500));
            victim.read(|got| {
                heard |= got.starts_with(&last);
                let is_own = |bytes: &Vec<u8>| got[6..12] == other || got.starts_with(bytes);
                wrong = wrong.or_else(|| frames.iter().position(is_own));
            });
        }
        match (wrong, heard) {
            (Some(which), _) => {
                return harm(format!("an isolated guest gets frame {which} of another"));
            }
            (None, false) => return harm("an isolated guest does not hear who is not isolated"),
            (None, true) => field.struck(),
        }
    }
}

fn sources_that_are_groups(field: &Field) -> Strike {
    let sources: [Mac; 3] = [BROADCAST, [1, 0, 0x5e, 0, 0, 1], [0; 6]];
    send(
        field,
        &field.evil(0),
        &plain(sources.map(|mac| frame(ADDRESSES[0], mac, EXPERIMENTAL, 60))),
    )
}

fn from_many(to: Mac, first: u32, count: u32) -> Vec<(Header, Vec<u8>)> {
    let source = |number: u32| {
        let [a, b, c, d] = (first + number).to_be_bytes();
        frame(to, [2, 0xee, a, b, c, d], EXPERIMENTAL, 60)
    };
    plain((0..count).map(source))
}

fn sources_that_change(field: &Field) -> Strike {
    send(field, &field.evil(0), &from_many(ADDRESSES[0], 0, 200))
}

fn a_hundred_thousand_addresses(field: &Field) -> Strike {
    let guest = Guest::attach(&field.socket("bridge"), Plan::default())?;
    let mut next = 0;
    while next < 100_000 {
        let frames = from_many(Guest::mac(9), next, 256);
        guest.load(1, |slot| frames.get(usize::from(slot)).cloned().unwrap_or_default());
        guest.pump(1);
        guest.taken(1, "frames")?;
        next += 256;
        field.struck();
    }
    Ok(())
}

fn addresses_that_flap(field: &Field) -> Strike {
    let guests =
        [field.socket("bridge"), field.evil(0)].map(|path| Guest::attach(&path, Plan::default()));
    let [Ok(a), Ok(b)] = guests else { return Err(rustix::io::Errno::CONNREFUSED.into()) };
    let frames = from_many(ADDRESSES[0], 0, 64);
    loop {
        for (header, bytes) in &frames {
            for guest in [&a, &b] {
                guest.send(1, *header, bytes);
                guest.taken(1, "a frame")?;
                guest.repost(0);
            }
        }
        field.struck();
    }
}

/// The guests' own frames start a loop between the two interfaces, again and again.
fn two_interfaces_that_are_bridged(field: &Field) -> Strike {
    let guests =
        ["bridge", "bridge2"].map(|name| Guest::attach(&field.socket(name), Plan::default()));
    let [Ok(a), Ok(b)] = guests else { return Err(rustix::io::Errno::CONNREFUSED.into()) };
    let (guests, mut seen) = ([&a, &b], [0_u16; 2]);
    let own = frame(BROADCAST, Guest::mac(9), EXPERIMENTAL, 60);
    loop {
        // A frame that circles in one direction only always comes from the same interface, as any guest's frames do.
        for guest in guests {
            guest.send(1, Header::default(), &own);
        }
        for _ in 0..100 {
            for (from, seen) in seen.iter_mut().enumerate() {
                let (guest, other) = (guests[from], guests[1 - from]);
                while *seen != guest.ring(0).used() {
                    other.send(1, Header::default(), &guest.received(0, *seen, own.len()));
                    other.taken(1, "a frame that was passed on")?;
                    *seen = seen.wrapping_add(1);
                }
                guest.repost(0);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        field.struck();
    }
}

fn tags_on_an_access_port(field: &Field) -> Strike {
    let tags = [0x8100, 0x88a8, 0x9100].into_iter().flat_map(|kind| {
        [1, 2, 4094, 4095, 0xffff].map(|id| tagged(ADDRESSES[0], Guest::mac(0), &[(kind, id)], 64))
    });
    send(field, &field.evil(0), &plain(tags))
}

fn tags_behind_tags(field: &Field) -> Strike {
    let many = [2, 3, 20].map(|depth| {
        let tags: Vec<_> = (0..depth).map(|tag| (0x8100, tag + 1)).collect();
        tagged(ADDRESSES[0], Guest::mac(0), &tags, 120)
    });
    send(field, &field.evil(0), &plain(many))
}

fn tags_behind_priority_tags(field: &Field) -> Strike {
    let hidden: [&[(u16, u16)]; 4] = [
        &[(0x8100, 0), (0x8100, 2)],
        &[(0x8100, 0xe000), (0x8100, 0), (0x8100, 2)],
        &[(0x88a8, 0), (0x8100, 2)],
        &[(0x8100, 0), (0x88a8, 0)],
    ];
    send(
        field,
        &field.evil(0),
        &plain(hidden.map(|tags| tagged(ADDRESSES[0], Guest::mac(0), tags, 64))),
    )
}

fn tags_of_a_trunk_that_are_not_its_own(field: &Field) -> Strike {
    let frames =
        [3, 10, 4094, 4095].map(|id| tagged(BROADCAST, Guest::mac(0), &[(0x8100, id)], 64));
    send(field, &field.socket("trunk"), &plain(frames))
}

fn bridge_and_slow_protocols(field: &Field) -> Strike {
    let groups = [0_u8, 1, 2, 3, 0xe];
    let frames = groups.into_iter().flat_map(|last| {
        [0x0026_u16, 0x8808, 0x8809, 0x88cc]
            .map(|kind| frame([1, 0x80, 0xc2, 0, 0, last], Guest::mac(0), kind, 60))
    });
    send(field, &field.evil(0), &plain(frames))
}

fn runts(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        for len in 1..26 {
            guest.ring(1).set(0, guest.buffer_address(1, 0), len, 0, 0);
            guest.ring(1).offer(0);
            guest.kick(1);
            guest.taken(1, "a runt")?;
        }
        field.struck();
    }
}

fn giants(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        for len in [65_536 + 12, 65_554 + 12, 100_000, 1 << 20] {
            guest.ring(1).set(0, guest.buffer_address(1, 0), len, 0, 0);
            guest.ring(1).offer(0);
            guest.kick(1);
            guest.taken(1, "a giant")?;
        }
        field.struck();
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Sends each header with each frame. A new guest starts when weir stops the port.
fn lies(field: &Field, headers: &[Header], frames: &[Vec<u8>]) -> Strike {
    for header in headers {
        for bytes in frames {
            let guest = field.plain()?;
            for _ in 0..64 {
                guest.send(1, *header, bytes);
            }
            guest.link.still_served("a header that lies")?;
            field.struck();
        }
    }
    Ok(())
}

fn checksums_outside_the_frame(field: &Field) -> Strike {
    let places = [(0, 0), (6, 0), (14, 0), (60, 0), (59, 0), (34, u16::MAX), (u16::MAX, u16::MAX)];
    let headers = places.map(|(csum_start, csum_offset)| Header {
        flags: 1,
        csum_start,
        csum_offset,
        ..Header::default()
    });
    lies(field, &headers, &[tcp(ADDRESSES[0], Guest::mac(0), 60)])
}

fn segments_of_one_byte(field: &Field) -> Strike {
    // The receiver has no segmentation offload, so that each frame must be cut.
    let other = Guest::attach(&field.evil(1), Plan::default())?;
    other.send(1, Header::default(), &frame(Guest::mac(0), Guest::mac(1), EXPERIMENTAL, 60));
    other.taken(1, "a frame")?;
    for gso_size in [0, 1, 8, 48] {
        let header = Header::tso(gso_size);
        let guest = field.plain()?;
        let at = guest.buffer(1, 0);
        guest.memory.set(at, &header.bytes());
        guest.memory.set(at + 12, &tcp(Guest::mac(1), Guest::mac(0), 60_000));
        for _ in 0..20 {
            guest.ring(1).set(0, guest.buffer_address(1, 0), 60_012, 0, 0);
            guest.ring(1).offer(0);
            guest.kick(1);
            other.repost(0);
        }
        guest.link.still_served("tiny segments")?;
        field.struck();
    }
    Ok(())
}

fn gso_of_what_is_no_tcp(field: &Field) -> Strike {
    let kinds = [1, 3, 4, 5, 0x80, 0x81, 0xff].map(|gso| Header { gso, ..Header::tso(100) });
    let mut udp = tcp(ADDRESSES[0], Guest::mac(0), 1000);
    udp[23] = 17;
    let mut fragment = tcp(ADDRESSES[0], Guest::mac(0), 1000);
    fragment[20] = 0x20;
    let arp = frame(ADDRESSES[0], Guest::mac(0), 0x0806, 1000);
    lies(field, &kinds, &[udp, fragment, arp])
}

fn headers_that_end_in_the_middle(field: &Field) -> Strike {
    let mut frames = Vec::new();
    for (at, value) in [(14, 0x4f), (14, 0x40), (14, 0x60), (16, 0xff), (46, 0xf0), (46, 0x00)] {
        let mut bytes = tcp(ADDRESSES[0], Guest::mac(0), 500);
        bytes[at] = value;
        frames.push(bytes);
    }
    frames
        .extend([14, 20, 34, 50].map(|len| tcp(ADDRESSES[0], Guest::mac(0), 500)[..len].to_vec()));
    lies(
        field,
        &[
            Header::tso(100),
            Header { flags: 1, csum_start: 34, csum_offset: 16, ..Header::default() },
        ],
        &frames,
    )
}

fn ipv6_extensions_without_end(field: &Field) -> Strike {
    let mut bytes = frame(ADDRESSES[0], Guest::mac(0), 0x86dd, 14);
    bytes.extend([0x60, 0, 0, 0, 4, 0, 0, 64]);
    bytes.extend([0xfe; 32]);
    // A chain of hop-by-hop headers.
    bytes.extend([0; 800]);
    let header =
        Header { flags: 1, gso: 4, header_len: 94, gso_size: 100, csum_start: 74, csum_offset: 16 };
    lies(field, &[Header::default(), header], &[bytes])
}

fn containers_that_lie(field: &Field) -> Strike {
    let link = Link::connect(&field.evil(0))?;
    let offered = link.ask(request::GET_PROTOCOL_FEATURES)?;
    drop(link);
    let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
    guest.link.tell_u64(request::SET_PROTOCOL_FEATURES, offered)?;
    guest.share()?;
    for ring in 0..2 {
        guest.serve(ring)?;
        guest.kick(ring);
    }
    let mut random = crate::random::Random::new();
    for _ in 0..500 {
        let mut bytes = frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 400);
        for _ in 0..40 {
            let at = 14 + random.below(386) as usize;
            bytes[at] = random.next() as u8;
        }
        let header = Header { gso: random.next() as u8 & 0xf0, ..Header::default() };
        guest.send(1, header, &bytes);
    }
    let _ = guest.link.ask(request::GET_FEATURES);
    Ok(())
}
