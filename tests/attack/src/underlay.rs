//! Attackers in the underlay: hosts that are no peers, and hosts with a peer's forged address.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with},
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        ear::Ear,
        frame::{BROADCAST, EXPERIMENTAL, Header, frame},
        guest::{Guest, Plan},
        harm,
    },
    measure::switch::{BONDED, CABLE, FABRIC, OVERLAY_PORT, UNDERLAY, UNDERLAY6, VNI, host6},
    random::Random,
    settings::Own,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(fragmentation_needed, "says that the way to the peer carries 552 bytes", as_root),
    attack!(
        fragmentation_needed_by_the_peers_address,
        "says it from the peer's address, with an MTU of 68, 0 and 1",
        as_root
    ),
    attack!(
        fragmentation_needed_without_pause,
        "says it again and again, with every number of bytes",
        as_root
    ),
    attack!(unreachable_of_every_kind, "says that the peer is unreachable, by all codes", as_root),
    attack!(
        other_errors,
        "says that time is exceeded, parameters are wrong, the source is to be quiet, the way is another",
        as_root
    ),
    attack!(errors_without_pause, "sends errors about the peer as fast as it can", as_root),
    attack!(
        datagrams_from_no_peer,
        "floods weir's port with frames from hosts that are no peers",
        as_root
    ),
    attack!(
        datagrams_in_the_peers_name,
        "floods it with frames that the peer seems to send, from ever new stations",
        as_root
    ),
    attack!(broadcasts_in_the_peers_name, "floods all guests of the network so", as_root),
    attack!(datagrams_that_are_no_vxlan, "floods it with bytes by chance", as_root),
    attack!(
        headers_of_isolated_senders,
        "sends frames of an isolated sender, in the name of a peer and of a host that is none",
        as_root
    ),
    attack!(fragments_that_never_end, "sends first fragments of datagrams, and no other", as_root),
    attack!(fragments_that_overlap, "sends fragments that overlap and are out of order", as_root),
    attack!(
        addresses_claimed_in_a_fabric,
        "claims ever new IP addresses in a network whose members FRR says, as a guest",
        as_root
    ),
    attack!(
        partners_that_are_guests,
        "speaks LACP and its markers as a guest of a bond's VLAN, true and by chance",
        as_root
    ),
];

/// The attacks on a weir of the attacker's own whose peers have IPv6 addresses.
pub const BY_IPV6: &[Attack] = &[
    attack!(packet_too_big, "says by ICMPv6 that the way to the peer carries 1280 bytes", as_root),
    attack!(
        packet_too_big_by_the_peers_address,
        "says it from the peer's address, with an MTU of 1280, 68, 0 and 1",
        as_root
    ),
    attack!(
        packet_too_big_without_pause,
        "says it again and again, with every number of bytes",
        as_root
    ),
    attack!(
        errors_of_every_kind_by_ipv6,
        "says that the peer is unreachable, time exceeded, a parameter wrong",
        as_root
    ),
    attack!(
        errors_without_pause_by_ipv6,
        "sends them from ever new hosts as fast as it can",
        as_root
    ),
    attack!(
        datagrams_from_no_peer_by_ipv6,
        "floods weir's port with frames from ever new hosts that are no peers",
        as_root
    ),
];

/// A host of the underlay that is not a peer.
const STRANGER: [u8; 4] = [192, 0, 2, 9];
/// The longest frame that fits an overlay by IPv6, and so also one by IPv4.
const LONGEST: usize = 1430 + 14;

/// The path to the peer, and a guest in its network.
#[derive(Debug)]
struct Way {
    guest: Guest,
    port: u16,
}

impl Way {
    fn new(field: &Field) -> Strike<Self> {
        let port = field.port(OVERLAY_PORT)?;
        let guest = Guest::attach(&field.socket("away"), Plan::default())?;
        let way = Self { guest, port };
        way.carries("before the attack")?;
        Ok(way)
    }

    /// Bytes sent to the peer so far.
    fn left() -> Strike<u64> {
        let path = "/proc/net/dev";
        let text = std::fs::read_to_string(path)?;
        let of = |line: &str| {
            line.trim_start().strip_prefix(CABLE)?.strip_prefix(':').map(str::to_owned)
        };
        let fields = text.lines().find_map(of).ok_or(Errno::NODEV)?;
        let sent = fields.split_whitespace().nth(8).and_then(|bytes| bytes.parse().ok());
        Ok(sent.ok_or(Errno::INVAL)?)
    }

    /// The longest frame can leave for the peer: at least one of many must, since a host may drop some.
    fn carries(&self, when: &str) -> Strike {
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let before = Self::left()?;
            let bytes = frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, LONGEST);
            self.guest.send(1, Header::default(), &bytes);
            self.guest.taken(1, "a frame for the peer")?;
            std::thread::sleep(Duration::from_millis(1));
            if Self::left()? - before >= LONGEST as u64 {
                return Ok(());
            }
        }
        harm(format!("{when} no frame of {LONGEST} bytes leaves for the peer"))
    }

    /// Packets that weir may have sent to the peer, from each UDP port in use on its host: IPv4 headers and the start
    /// of their payload.
    fn quoted(&self) -> Strike<Vec<Vec<u8>>> {
        let own = format!("{:08X}:", u32::from_ne_bytes(UNDERLAY[0]));
        let text = std::fs::read_to_string("/proc/net/udp")?;
        let of = |line: &str| {
            let local = line.split_whitespace().nth(1)?.strip_prefix(&own)?;
            u16::from_str_radix(local, 16).ok()
        };
        let [own, peer] = UNDERLAY;
        let ports = text.lines().filter_map(of).chain([self.port]);
        let quote = |port: u16| {
            let mut bytes = vec![0x45, 0, 5, 0xdc, 0, 1, 0x40, 0, 64, 17, 0, 0];
            bytes.extend(own);
            bytes.extend(peer);
            bytes.extend([port, self.port, 0x5c8, 0].map(u16::to_be_bytes).concat());
            bytes.extend(vxlan(VNI, &frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60)));
            bytes
        };
        Ok(ports.map(quote).collect())
    }

    /// Sends an ICMP error to weir's host for each packet of [`Self::quoted`].
    fn error(&self, from: [u8; 4], [kind, code]: [u8; 2], rest: u32) -> Strike {
        for quoted in self.quoted()? {
            let mut bytes = vec![kind, code, 0, 0];
            bytes.extend(rest.to_be_bytes());
            bytes.extend(quoted);
            let sum = checksum(&bytes);
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
            packet(from, ICMP, [1, 0], &bytes)?;
        }
        Ok(())
    }
}

/// A frame with a VXLAN header.
fn vxlan(vni: u32, frame: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = vni.to_be_bytes();
    [&[8, 0, 0, 0, a, b, c, 0][..], frame].concat()
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| (u32::from(pair[0]) << 8) | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

const ICMP: u8 = 1;
const UDP: u8 = 17;
/// The flag for more fragments.
const MORE: u16 = 1 << 13;

/// Sends an IPv4 packet to weir's host with the source address `from`.
fn packet(from: [u8; 4], protocol: u8, [id, fragment]: [u16; 2], payload: &[u8]) -> Strike {
    let (inet, raw) = (AddressFamily::INET, SocketType::RAW);
    let raw = socket_with(inet, raw, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
    packet_by(&raw, from, protocol, [id, fragment], payload)
}

fn packet_by(
    raw: &OwnedFd,
    from: [u8; 4],
    protocol: u8,
    [id, fragment]: [u16; 2],
    payload: &[u8],
) -> Strike {
    let len = u16::try_from(20 + payload.len()).map_err(|_| Errno::INVAL)?;
    let mut bytes = vec![0x45, 0];
    bytes.extend([len, id, fragment].map(u16::to_be_bytes).concat());
    bytes.extend([64, protocol, 0, 0]);
    bytes.extend(from);
    bytes.extend(UNDERLAY[0]);
    let sum = checksum(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(payload);
    sendto(raw, &bytes, SendFlags::empty(), &SocketAddrV4::new(UNDERLAY[0].into(), 0))?;
    Ok(())
}

const NEEDED: [u8; 2] = [3, 4];

fn fragmentation_needed(field: &Field) -> Strike {
    let way = Way::new(field)?;
    way.error(STRANGER, NEEDED, 552)?;
    way.carries("after a stranger's message that it does not fit")?;
    field.struck();
    Ok(())
}

fn fragmentation_needed_by_the_peers_address(field: &Field) -> Strike {
    let way = Way::new(field)?;
    for mtu in [68, 0, 1, 1280] {
        way.error(UNDERLAY[1], NEEDED, mtu)?;
    }
    way.carries("after messages that it does not fit")?;
    field.struck();
    Ok(())
}

fn fragmentation_needed_without_pause(field: &Field) -> Strike {
    let way = Way::new(field)?;
    for mtu in (68..1500).cycle() {
        way.error(STRANGER, NEEDED, mtu)?;
        if mtu % 64 == 0 {
            way.carries("beside messages that it does not fit")?;
            field.struck();
        }
    }
    Ok(())
}

fn unreachable_of_every_kind(field: &Field) -> Strike {
    let way = Way::new(field)?;
    for code in (0..16).filter(|code| *code != NEEDED[1]) {
        way.error(STRANGER, [3, code], 0)?;
    }
    way.carries("after errors of every kind")?;
    field.struck();
    Ok(())
}

fn other_errors(field: &Field) -> Strike {
    let way = Way::new(field)?;
    for (kind, codes, rest) in
        [(4, 1, 0), (5, 4, u32::from_be_bytes(STRANGER)), (11, 2, 0), (12, 3, 1 << 24)]
    {
        for code in 0..codes {
            way.error(STRANGER, [kind, code], rest)?;
        }
    }
    way.carries("after errors of every kind")?;
    field.struck();
    Ok(())
}

fn errors_without_pause(field: &Field) -> Strike {
    let way = Way::new(field)?;
    for round in 0.. {
        for code in 0..16 {
            way.error(STRANGER, [3, code], 552)?;
        }
        if round % 64 == 0 {
            way.carries("beside a flood of errors")?;
            field.struck();
        }
    }
    Ok(())
}

/// Sends datagrams with the source `from` to weir, as fast as the host accepts them.
fn flood(field: &Field, from: [u8; 4], mut make: impl FnMut(u32) -> Vec<u8>) -> Strike {
    let port = field.port(OVERLAY_PORT)?;
    let (inet, raw) = (AddressFamily::INET, SocketType::RAW);
    let raw = socket_with(inet, raw, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
    for number in 0..u32::MAX {
        let payload = make(number);
        let len = u16::try_from(8 + payload.len()).map_err(|_| Errno::INVAL)?;
        let source = 49_152 + (number % 1000) as u16;
        let mut bytes = [source, port, len, 0].map(u16::to_be_bytes).concat();
        bytes.extend(payload);
        packet_by(&raw, from, UDP, [number as u16, 0], &bytes)?;
        if number % 64 == 0 {
            field.struck();
        }
        // The rate of an underlay is limited: 100,000 a second.
        if number % 16 == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

/// A VXLAN header can say that its frame's sender is isolated. The switch believes a header that
/// comes from a peer, and only for that frame.
fn headers_of_isolated_senders(field: &Field) -> Strike {
    let [local, peer] = UNDERLAY.map(Ipv4Addr::from);
    let port = UdpSocket::bind((local, 0))?.local_addr()?.port();
    let own = Own::start_with(field, None, |_| {
        Ok(format!(
            "[overlay]\nlocal = \"{local}\"\nport = {port}\ngbp = [\"{peer}\"]\n\n[network.blue]\n\
             vni = {VNI}\npeers = [\"{peer}\"]\n\n[vif.alone]\nnetwork = \"blue\"\nisolated = true\n\n\
             [vif.open]\nnetwork = \"blue\"\n"
        ))
    })?;
    let [mut alone, mut open] =
        [Ear::attach(&own.socket("alone"))?, Ear::attach(&own.socket("open"))?];
    let (inet, raw) = (AddressFamily::INET, SocketType::RAW);
    let raw = socket_with(inet, raw, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
    let sends = |from: [u8; 4], flags: [u8; 2], frame: &[u8]| -> Strike {
        let mut payload = vxlan(VNI, frame);
        payload[..2].copy_from_slice(&flags);
        let len = u16::try_from(8 + payload.len()).map_err(|_| Errno::INVAL)?;
        let udp = [50_000, port, len, 0].map(u16::to_be_bytes).concat();
        packet_by(&raw, from, UDP, [0, 0], &[udp, payload].concat())
    };
    let of = |number: u8| frame(BROADCAST, Guest::mac(number), EXPERIMENTAL, 60);
    // With the flag for groups, and without.
    let (isolated, plain) = ([0x88, 1], [8, 0]);
    for number in 1..200_u8 {
        // The last frame is from the same station, without a statement about isolation: both guests
        // get it.
        let (strangers, peers, last) = (of(1), of(2), frame(BROADCAST, Guest::mac(2), 0x88b6, 60));
        let (mut at_alone, mut at_open) = (Vec::new(), Vec::new());
        for flags in [isolated, plain, [0xff, 0xff]] {
            sends(STRANGER, flags, &strangers)?;
        }
        let end = Instant::now() + Duration::from_secs(3);
        loop {
            // A host that is busy drops some.
            sends(UNDERLAY[1], isolated, &peers)?;
            sends(UNDERLAY[1], plain, &last)?;
            std::thread::sleep(Duration::from_millis(2));
            alone.read(|got| at_alone.push(got[..60].to_vec()));
            open.read(|got| at_open.push(got[..60].to_vec()));
            if at_alone.contains(&last) && [&last, &peers].iter().all(|it| at_open.contains(it)) {
                break;
            }
            if Instant::now() > end {
                return harm(format!(
                    "round {number}: a peer's frame is lost behind isolated ones"
                ));
            }
        }
        if at_alone.contains(&strangers) || at_open.contains(&strangers) {
            return harm("a frame of a host that is no peer arrives");
        }
        if at_alone.contains(&peers) {
            return harm("an isolated sender's frame reaches an isolated guest");
        }
        field.struck();
    }
    Ok(())
}

/// Two guests of a network, and a frame of the first one for the second one.
fn neighbours(field: &Field, names: [&str; 2]) -> Strike<([Ear; 2], Vec<u8>)> {
    let [evil, good] = names.map(|name| Ear::attach(&field.socket(name)));
    let (evil, good) = (evil?, good?);
    good.say(&frame(BROADCAST, Guest::mac(221), EXPERIMENTAL, 60))?;
    let last = frame(Guest::mac(221), Guest::mac(220), EXPERIMENTAL, 60);
    Ok(([evil, good], last))
}

fn addresses_claimed_in_a_fabric(field: &Field) -> Strike {
    let ([evil, mut good], last) = neighbours(field, FABRIC)?;
    let (mac, mut random) = (Guest::mac(220), Random::new());
    loop {
        for _ in 0..64 {
            let [a, b, c, d, kind, ..] = random.next().to_be_bytes();
            let mut arp = frame(BROADCAST, mac, 0x0806, 14);
            arp.extend([0, 1, 8, 0, 6, 4, 0, 1 + kind % 2]);
            for _ in 0..2 {
                arp.extend(mac);
                arp.extend([a, b, c, d]);
            }
            arp.resize(60, 0);
            evil.say(&arp)?;
        }
        good.must_hear(&evil, &last, "a frame behind claims is lost")?;
        field.struck();
    }
}

fn partners_that_are_guests(field: &Field) -> Strike {
    let ([evil, mut good], last) = neighbours(field, BONDED)?;
    let mut random = Random::new();
    loop {
        let said = |subtype: u8| {
            let mut bytes = frame([1, 0x80, 0xc2, 0, 0, 2], Guest::mac(220), 0x8809, 14);
            bytes.extend([subtype, 1]);
            // The actor, the partner, and the collector: all bits of both states.
            for part in [1, 2] {
                bytes.extend([part, 20, 0, 1, 2, 0, 0, 0, 0, 9, 0, 7, 0, 1, 0, 1, 0x3f, 0, 0, 0]);
            }
            bytes.extend([3, 16]);
            bytes.resize(124, 0);
            for _ in 0..random.below(4) {
                let at = 14 + random.below(110) as usize;
                bytes[at] = random.next() as u8;
            }
            bytes
        };
        let frames: Vec<_> = [1, 1, 1, 2, 3, 10].map(said).into();
        good.must_not_hear(&evil, &frames, &last, "a guest's LACP arrives")?;
        field.struck();
    }
}

/// The path to a peer with an IPv6 address, from the attacker's own weir.
#[derive(Debug)]
struct Way6 {
    way: Way,
    _own: Own,
}

impl Way6 {
    fn new(field: &Field) -> Strike<Self> {
        let [local, peer] = UNDERLAY6.map(Ipv6Addr::from);
        let port = UdpSocket::bind((local, 0))?.local_addr()?.port();
        let own = Own::start_with(field, None, |_| {
            Ok(format!(
                "[overlay]\nlocal = \"{local}\"\nport = {port}\n\n[network.blue]\nvni = {VNI}\n\
                 peers = [\"{peer}\"]\n\n[vif.away]\nnetwork = \"blue\"\n"
            ))
        })?;
        let guest = Guest::attach(&own.socket("away"), Plan::default())?;
        let way = Self { way: Way { guest, port }, _own: own };
        way.way.carries("before the attack")?;
        Ok(way)
    }

    /// Sends an ICMPv6 error about each packet that weir may have sent to the peer.
    fn error(&self, from: [u8; 16], [kind, code]: [u8; 2], rest: u32) -> Strike {
        let [own, peer] = UNDERLAY6;
        let word = |word: &[u8]| -> String {
            word.iter().rev().map(|byte| format!("{byte:02X}")).collect()
        };
        // Words of 32 bits in this machine's order; weir runs on little-endian machines.
        let own_text: String = own.chunks(4).map(word).collect::<Vec<String>>().concat();
        let text = std::fs::read_to_string("/proc/net/udp6")?;
        let of = |line: &str| {
            let local = line.split_whitespace().nth(1)?.strip_prefix(&own_text)?;
            u16::from_str_radix(local.strip_prefix(':')?, 16).ok()
        };
        for port in text.lines().filter_map(of).chain([self.way.port]) {
            let udp = [port, self.way.port, 0x5c8, 0].map(u16::to_be_bytes).concat();
            let inner = vxlan(VNI, &frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60));
            let quoted = [header6(own, peer, UDP, 0x5c8), udp, inner].concat();
            let mut bytes = [&[kind, code, 0, 0][..], &rest.to_be_bytes(), &quoted].concat();
            let len = u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
            let pseudo = [&from[..], &own, &len.to_be_bytes(), &[0, 0, 0, ICMPV6]].concat();
            let sum = checksum(&[pseudo, bytes.clone()].concat());
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
            packet6(from, ICMPV6, &bytes)?;
        }
        Ok(())
    }
}

const ICMPV6: u8 = 58;
const TOO_BIG: [u8; 2] = [2, 0];

fn header6(from: [u8; 16], to: [u8; 16], next: u8, len: u16) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    [&[0x60, 0, 0, 0, high, low, next, 64][..], &from, &to].concat()
}

/// Sends an IPv6 packet to weir's host with the source address `from`.
fn packet6(from: [u8; 16], next: u8, payload: &[u8]) -> Strike {
    let (inet, raw) = (AddressFamily::INET6, SocketType::RAW);
    let raw = socket_with(inet, raw, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
    let len = u16::try_from(payload.len()).map_err(|_| Errno::INVAL)?;
    let bytes = [header6(from, UNDERLAY6[0], next, len), payload.to_vec()].concat();
    let to = SocketAddrV6::new(UNDERLAY6[0].into(), 0, 0, 0);
    sendto(&raw, &bytes, SendFlags::empty(), &to)?;
    Ok(())
}

fn packet_too_big(field: &Field) -> Strike {
    let way = Way6::new(field)?;
    way.error(host6(9), TOO_BIG, 1280)?;
    way.way.carries("after a stranger's message that it does not fit")?;
    field.struck();
    Ok(())
}

fn packet_too_big_by_the_peers_address(field: &Field) -> Strike {
    let way = Way6::new(field)?;
    for mtu in [1280, 68, 0, 1] {
        way.error(UNDERLAY6[1], TOO_BIG, mtu)?;
    }
    way.way.carries("after messages that it does not fit")?;
    field.struck();
    Ok(())
}

fn packet_too_big_without_pause(field: &Field) -> Strike {
    let way = Way6::new(field)?;
    for mtu in (68..1500).cycle() {
        way.error(host6((mtu % 200) as u8 + 9), TOO_BIG, mtu)?;
        if mtu % 64 == 0 {
            way.way.carries("beside messages that it does not fit")?;
            field.struck();
        }
    }
    Ok(())
}

fn errors_of_every_kind_by_ipv6(field: &Field) -> Strike {
    let way = Way6::new(field)?;
    for (kind, codes) in [(1, 8), (3, 2), (4, 3), (100, 1), (127, 1)] {
        for code in 0..codes {
            way.error(host6(9), [kind, code], 0)?;
            way.error(UNDERLAY6[1], [kind, code], 0)?;
        }
    }
    way.way.carries("after errors of every kind")?;
    field.struck();
    Ok(())
}

fn errors_without_pause_by_ipv6(field: &Field) -> Strike {
    let way = Way6::new(field)?;
    for round in 0_u32.. {
        for code in 0..8 {
            way.error(host6((round % 200) as u8 + 9), [1, code], 1280)?;
        }
        if round % 64 == 0 {
            way.way.carries("beside a flood of errors")?;
            field.struck();
        }
    }
    Ok(())
}

fn datagrams_from_no_peer_by_ipv6(field: &Field) -> Strike {
    let way = Way6::new(field)?;
    for number in 0..u32::MAX {
        let from = host6((number % 200) as u8 + 9);
        let payload = vxlan(VNI, &frame(BROADCAST, station(number), EXPERIMENTAL, 60));
        let len = u16::try_from(8 + payload.len()).map_err(|_| Errno::INVAL)?;
        let source = 49_152 + (number % 1000) as u16;
        let udp = [source, way.way.port, len, 0].map(u16::to_be_bytes).concat();
        packet6(from, UDP, &[udp, payload].concat())?;
        if number % 1024 == 0 {
            way.way.carries("beside datagrams of strangers")?;
            field.struck();
        }
        // The rate of an underlay is limited: 100,000 a second.
        if number % 16 == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

fn station(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [2, 0xdd, a, b, c, d]
}

fn datagrams_from_no_peer(field: &Field) -> Strike {
    flood(field, STRANGER, |number| {
        vxlan(VNI, &frame(BROADCAST, station(number), EXPERIMENTAL, 60))
    })
}

fn datagrams_in_the_peers_name(field: &Field) -> Strike {
    flood(field, UNDERLAY[1], |number| {
        vxlan(VNI, &frame(Guest::mac(9), station(number), EXPERIMENTAL, 60))
    })
}

fn broadcasts_in_the_peers_name(field: &Field) -> Strike {
    let _guest = Guest::attach(&field.socket("away"), Plan::default())?;
    flood(field, UNDERLAY[1], |number| {
        vxlan(VNI, &frame(BROADCAST, station(number % 16), EXPERIMENTAL, LONGEST))
    })
}

fn datagrams_that_are_no_vxlan(field: &Field) -> Strike {
    let mut random = Random::new();
    flood(field, UNDERLAY[1], move |_| {
        let len = random.next() as usize % 120;
        (0..len).map(|_| random.next() as u8).collect()
    })
}

/// Sends a fragment of a datagram to weir's port. `offset` is in bytes. `more` is true if fragments follow.
fn fragment(id: u16, offset: u16, more: bool, payload: &[u8]) -> Strike {
    packet(UNDERLAY[1], UDP, [id, offset / 8 + if more { MORE } else { 0 }], payload)
}

/// The first bytes of a datagram of `len` bytes in all.
fn begin(port: u16, len: u16) -> Vec<u8> {
    let mut bytes = [port, port, len, 0].map(u16::to_be_bytes).concat();
    bytes.extend(vxlan(VNI, &frame(BROADCAST, station(1), EXPERIMENTAL, 96)));
    bytes.truncate(64);
    bytes
}

fn fragments_that_never_end(field: &Field) -> Strike {
    let (way, mut id) = (Way::new(field)?, 0_u16);
    for round in 0.. {
        for _ in 0..64 {
            id = id.wrapping_add(1);
            fragment(id, 0, true, &begin(way.port, 1400))?;
        }
        if round % 16 == 0 {
            way.carries("beside fragments that never end")?;
            field.struck();
        }
    }
    Ok(())
}

fn fragments_that_overlap(field: &Field) -> Strike {
    let way = Way::new(field)?;
    for id in 0..200 {
        fragment(id, 128, false, &[0x5a; 64])?;
        fragment(id, 56, true, &[0xa5; 72])?;
        fragment(id, 0, true, &begin(way.port, 192))?;
    }
    way.carries("after fragments that overlap")?;
    field.struck();
    Ok(())
}
