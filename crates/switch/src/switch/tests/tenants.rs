//! Frames that one tenant's guest may send to another's.

use weir_wire::{VnetHdr, vnet};

use super::*;

fn send_frame(pair: &mut QueuePair, frame: &[u8]) {
    send_as(pair, frame, &VnetHdr::default());
}

fn send_as(pair: &mut QueuePair, frame: &[u8], header: &VnetHdr) {
    eventually("room to send", || pair.send_raw(frame, header).is_ok());
    pair.flush();
}

fn next(pair: &mut QueuePair) -> Vec<u8> {
    let mut got = Vec::new();
    eventually("a frame arrives", || pair.recv_into(&mut got).is_some());
    got
}

impl Bench {
    pub(super) fn drops(&self, vif: &str) -> Vec<(String, u64)> {
        self.port(vif).drops.into_iter().collect()
    }
}

/// A frame with `payload` bytes after its Ethernet header, and after its VLAN tag if it has one.
fn plain(from: u8, to: u8, payload: usize) -> Vec<u8> {
    [&mac(to)[..], &mac(from), &[0x88, 0xb5], &vec![7; payload][..]].concat()
}

/// A TCP packet over IPv4 with `payload` bytes, to be cut into segments of `size`.
fn tcp(from: u8, to: u8, payload: usize, size: u16) -> (Vec<u8>, VnetHdr) {
    let total = (40 + payload) as u16;
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let mut tcp = [0; 20];
    tcp[12] = 0x50;
    let frame = [&mac(to)[..], &mac(from), &[8, 0], &ip, &tcp, &vec![7; payload]].concat();
    let header = VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        gso_type: vnet::GSO_TCPV4,
        hdr_len: 54,
        gso_size: size,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    (frame, header)
}

#[test]
fn what_is_longer_than_the_senders_mtu_is_dropped_and_counted_there() {
    let bench = Bench::with(
        "[vif.a]\nmtu = 1500\ntrunk = \"all\"\nnative = 1\n[vif.b]\ntrunk = \"all\"\nnative = 1\n",
    );
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    send_frame(&mut b[0], &plain(2, 1, 46));
    next(&mut a[0]);
    let tagged = |payload| {
        let mut frame = plain(1, 2, payload);
        frame.splice(12..12, [0x81, 0, 0, 9]);
        frame
    };
    // A tag does not count, and a GSO frame is measured by its segments.
    let (fits, fits_as) = tcp(1, 2, 5000, 1460);
    let (long, long_as) = tcp(1, 2, 5000, 1461);
    // The frame fits its MTU as it is, whatever segment size it claims.
    let (short, short_as) = tcp(1, 2, 1460, 9000);
    send_frame(&mut a[0], &plain(1, 2, 1501));
    send_frame(&mut a[0], &plain(1, 2, 1500));
    send_frame(&mut a[0], &tagged(1501));
    send_frame(&mut a[0], &tagged(1500));
    // A second tag does not count either, but a third one does.
    let twice = |payload| {
        let mut frame = tagged(payload);
        frame.splice(12..12, [0x81, 0, 0, 8]);
        frame
    };
    send_frame(&mut a[0], &twice(1501));
    send_frame(&mut a[0], &twice(1500));
    let mut thrice = twice(1500);
    thrice.splice(12..12, [0x81, 0, 0, 7]);
    send_frame(&mut a[0], &thrice);
    send_as(&mut a[0], &long, &long_as);
    send_as(&mut a[0], &fits, &fits_as);
    send_as(&mut a[0], &short, &short_as);
    let got = [(); 5].map(|()| next(&mut b[0]));
    assert_eq!(got[0], plain(1, 2, 1500));
    assert_eq!([&got[1], &got[2]], [&tagged(1500), &twice(1500)]);
    assert_eq!([got[3].len(), got[4].len()], [fits.len(), short.len()]);
    assert_eq!(bench.drops("a"), [("over_mtu_tx".into(), 5)]);
    assert_eq!(bench.drops("b"), []);
}

#[test]
fn what_is_longer_than_the_receivers_mtu_is_dropped_and_counted_there() {
    let bench = Bench::with("[vif.a]\n[vif.b]\nmtu = 1500\n[vif.c]\n");
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let (_c, mut c) = bench.guest("c", 3, 1);
    send_frame(&mut b[0], &plain(2, 1, 46));
    next(&mut a[0]);
    next(&mut c[0]);
    send_frame(&mut a[0], &plain(1, 2, 9000));
    let mut to_all = plain(1, 2, 9000);
    to_all[..6].fill(0xff);
    send_frame(&mut a[0], &to_all);
    send_frame(&mut a[0], &plain(1, 2, 1500));
    // Only this receiver misses the flooded frame.
    assert_eq!(next(&mut c[0]), to_all);
    assert_eq!(next(&mut b[0]), plain(1, 2, 1500));
    assert_eq!(bench.drops("b"), [("over_mtu_rx".into(), 2)]);
    assert_eq!([bench.drops("a"), bench.drops("c")], [[], []]);
}

const OWN: [u8; 4] = [10, 0, 0, 1];
const OTHERS: [u8; 4] = [10, 0, 0, 9];

/// A broadcast of guest `from`, with these bytes after its Ethernet header.
fn to_all(from: u8, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &mac(from), &ethertype.to_be_bytes(), payload].concat()
}

/// A datagram over IPv4.
fn udp(from: u8, addresses: [[u8; 4]; 2], ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let udp_len = 8 + payload.len() as u16;
    let len = (20 + udp_len).to_be_bytes();
    let words = [ports[0], ports[1], udp_len, 0].map(u16::to_be_bytes);
    let ip = [&[0x45, 0][..], &len, &[0, 0, 0, 0, 64, 17, 0, 0], addresses.as_flattened()].concat();
    to_all(from, 0x0800, &[&ip[..], words.as_flattened(), payload].concat())
}

/// An ARP reply, in which guest `from` claims `address`.
fn arp(from: u8, address: [u8; 4]) -> Vec<u8> {
    let says = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &mac(from), &address, &[0xff; 6], &OTHERS].concat();
    to_all(from, 0x0806, &says)
}

/// A neighbour advertisement, in which guest `from` claims `address`.
fn advertisement(from: u8, src: &str, address: &str) -> Vec<u8> {
    let [src, address, to] =
        [src, address, "ff02::1"].map(|it| it.parse::<std::net::Ipv6Addr>().unwrap().octets());
    let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &address, &[2, 1], &mac(from)].concat();
    let ip = [&[0x60, 0, 0, 0, 0, 32, 58, 255][..], &src, &to].concat();
    to_all(from, 0x86dd, &[ip, message].concat())
}

#[test]
fn a_guest_that_is_held_to_its_addresses_speaks_for_nobody_else() {
    let bench = Bench::with(
        "[vif.a]\nsource_guard = \"configured\"\naddresses = [\"10.0.0.1\", \"fd00::1\"]\n[vif.b]\n",
    );
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let spoofed = [
        udp(1, [OTHERS, OWN], [9, 9], b"x"),
        arp(1, OTHERS),
        advertisement(1, "fd00::1", "fd00::9"),
        advertisement(1, "fd00::9", "fd00::1"),
        plain(1, 2, 60),
    ];
    let own =
        [udp(1, [OWN, OTHERS], [9, 9], b"x"), arp(1, OWN), advertisement(1, "fd00::1", "fd00::1")];
    // The guard sees the frame after the checksum was filled in at the place of the address.
    let fill = VnetHdr {
        flags: vnet::F_NEEDS_CSUM,
        csum_start: 14,
        csum_offset: 14,
        ..VnetHdr::default()
    };
    send_as(&mut a[0], &arp(1, OWN), &fill);
    for frame in spoofed.iter().chain(&own) {
        send_frame(&mut a[0], frame);
    }
    assert_eq!([(); 3].map(|()| next(&mut b[0])), own);
    let guard = ["arp", "ip", "nd", "other"].map(|it| format!("source_guard_{it}"));
    let expected: Vec<_> = guard.into_iter().zip([2, 2, 1, 1]).collect();
    assert_eq!(bench.drops("a"), expected);
    let guard = bench.explain("a").guard.unwrap();
    assert_eq!(guard.mode, config::GuardMode::Configured);
    assert_eq!(guard.addresses.to_string(), "10.0.0.1, fd00::1");
    assert_eq!(guard.drops["source_guard_arp"], 2);

    // The guest's address is changed while it runs, and then the guard is switched off.
    assert_eq!(bench.set("a", "addresses=10.0.0.9"), Response::Ok);
    send_frame(&mut a[0], &udp(1, [OWN, OTHERS], [9, 9], b"x"));
    send_frame(&mut a[0], &arp(1, OTHERS));
    assert_eq!(next(&mut b[0]), arp(1, OTHERS));
    let Response::Error { message, .. } = bench.set("a", "mac_check=false") else {
        panic!("what would ARP be compared with?")
    };
    assert!(message.contains("mac_check = false"), "{message}");
    let socket = bench.dir.path().join("c.sock");
    let mut unchecked = VifConfig::new(name("c"), SocketPath::try_from(socket.as_path()).unwrap());
    (unchecked.mac_check, unchecked.guarding.mode) = (false, config::GuardMode::Snooped);
    let added = bench.switch.handle(Request::VifAdd { config: unchecked.into() });
    assert!(matches!(added, Response::Error { .. }), "nor with one that is added");
    assert_eq!(bench.set("a", "source_guard=off"), Response::Ok);
    send_frame(&mut a[0], &plain(1, 2, 60));
    assert_eq!(next(&mut b[0]), plain(1, 2, 60));
    assert_eq!(bench.explain("a").guard, None);
}

#[test]
fn what_is_for_a_station_that_nobody_knows_no_other_guest_sees() {
    let bench =
        Bench::with("[vif.a]\n[vif.b]\nmac = \"52:54:00:00:00:02\"\n[vif.c]\nmac_check = false\n");
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    send_frame(&mut a[0], &plain(1, 9, 60));
    let dropped = [("unknown_unicast".into(), 1)];
    eventually("it goes nowhere", || bench.drops("a") == dropped);
    // An unknown destination could be a guest that may have any address.
    let (_c, mut c) = bench.guest("c", 3, 1);
    send_frame(&mut a[0], &plain(1, 9, 60));
    send_frame(&mut a[0], &plain(1, 2, 70));
    assert_eq!(next(&mut c[0]), plain(1, 9, 60));
    assert_eq!(next(&mut b[0]), plain(1, 2, 70));
    assert_eq!(bench.drops("a"), dropped);
}

/// A DHCP message for or from a client: `op`, the client, the address, and the kind of message.
fn dhcp(op: u8, client: u8, gives: [u8; 4], kind: u8) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..8].copy_from_slice(&[op, 1, 6, 0, 1, 2, 3, 4]);
    message[16..20].copy_from_slice(&gives);
    message[28..34].copy_from_slice(&mac(client));
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.extend([53, 1, kind, 51, 4, 0, 0, 14, 16, 255]);
    message
}

const NOBODY: [u8; 4] = [0; 4];
const ALL: [u8; 4] = [255; 4];
const SERVER: [u8; 4] = [10, 0, 0, 254];

fn requests(client: u8) -> Vec<u8> {
    udp(client, [NOBODY, ALL], [68, 67], &dhcp(1, client, NOBODY, 3))
}

fn acknowledges(server: u8, client: u8, address: [u8; 4]) -> Vec<u8> {
    udp(server, [SERVER, ALL], [67, 68], &dhcp(2, client, address, 5))
}

#[test]
fn a_question_in_anothers_name_or_one_that_is_dropped_gets_nobody_an_address() {
    let bench = Bench::with(
        "[vif.a]\nsource_guard = \"snooped\"\n[vif.b]\nsource_guard = \"snooped\"\n[[vif.b.filter]]\ndirection = \"tx\"\n\
         match = \"udp[12:4] = 0x05050505\"\naction = \"drop\"\n[vif.c]\nrouter = true\n",
    );
    let again = |mut frame: Vec<u8>| {
        // The message is of another transaction.
        frame[14 + 20 + 8 + 4..][..4].copy_from_slice(&[5; 4]);
        frame
    };
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let (_c, mut c) = bench.guest("c", 3, 1);
    let mut got = |wanted: &[u8]| {
        eventually("it comes", || {
            let mut got = Vec::new();
            c[0].recv_into(&mut got).is_some() && got == wanted
        });
    };
    // The guest has its own address, and sends a request of the other guest.
    send_frame(&mut a[0], &requests(1));
    got(&requests(1));
    send_frame(&mut a[0], &requests(2));
    eventually("it is dropped", || bench.drops("a") == [("src_mac_spoofed".into(), 1)]);
    send_frame(&mut b[0], &requests(2));
    got(&requests(2));
    // Both acknowledgements are broadcasts, the first one first.
    send_frame(&mut c[0], &acknowledges(3, 2, OWN));
    let leases = |name: &str| bench.port(name).guard.unwrap().leases.len();
    eventually("it is given", || leases("b") == 1);
    assert_eq!(leases("a"), 0);
    // A request that a filter drops is not followed.
    send_frame(&mut b[0], &again(requests(2)));
    eventually("it is dropped", || bench.drops("b") == [("filtered_tx".into(), 1)]);
    let answer = again(acknowledges(3, 2, OTHERS));
    send_frame(&mut c[0], &answer);
    eventually("it is answered", || {
        let mut got = Vec::new();
        b[0].recv_into(&mut got).is_some() && got == answer
    });
    assert_eq!(leases("b"), 1);
}

#[test]
fn what_dhcp_gives_a_guest_it_may_send_from() {
    let bench = Bench::with(
        "[vif.a]\nsource_guard = \"snooped\"\n[vif.b]\nsource_guard = \"snooped\"\n[vif.c]\nrouter = true\n[vif.d]\n",
    );
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let (_c, mut c) = bench.guest("c", 3, 1);
    let (_d, mut d) = bench.guest("d", 4, 1);
    let sends = udp(1, [OWN, OTHERS], [9, 9], b"x");
    send_frame(&mut a[0], &sends);
    send_frame(&mut a[0], &requests(1));
    assert_eq!(next(&mut c[0]), requests(1), "what it sent before went nowhere");
    // A guest that is no server cannot give a lease, whatever it sends.
    let forged = acknowledges(4, 1, OWN);
    send_frame(&mut d[0], &forged);
    assert_eq!(next(&mut a[0]), forged);
    send_frame(&mut a[0], &sends);
    eventually("it is dropped", || bench.drops("a") == [("source_guard_ip".into(), 2)]);

    let given = acknowledges(3, 1, OWN);
    send_frame(&mut c[0], &given);
    assert_eq!(next(&mut a[0]), given);
    send_frame(&mut a[0], &sends);
    send_frame(&mut a[0], &arp(1, OWN));
    let got = [(); 4].map(|()| next(&mut d[0]));
    assert_eq!(got, [requests(1), given.clone(), sends.clone(), arp(1, OWN)]);
    let guard = bench.explain("a").guard.unwrap();
    assert_eq!(guard.mode, config::GuardMode::Snooped);
    let leases: Vec<_> = guard.leases.iter().map(|lease| lease.address.to_string()).collect();
    assert_eq!(leases, ["10.0.0.1"]);

    // A guest does not get another guest's address, even if a server has been made to give it.
    send_frame(&mut b[0], &requests(2));
    eventually("it is asked", || {
        let mut got = Vec::new();
        c[0].recv_into(&mut got).is_some() && got == requests(2)
    });
    send_frame(&mut c[0], &acknowledges(3, 2, OWN));
    send_frame(&mut c[0], &acknowledges(3, 2, OTHERS));
    eventually("it is answered", || {
        let mut got = Vec::new();
        b[0].recv_into(&mut got).is_some() && got == acknowledges(3, 2, OTHERS)
    });
    send_frame(&mut b[0], &udp(2, [OWN, OTHERS], [9, 9], b"x"));
    send_frame(&mut b[0], &udp(2, [OTHERS, OWN], [9, 9], b"x"));
    eventually("only its own is there", || {
        let mut got = Vec::new();
        c[0].recv_into(&mut got).is_some() && got == udp(2, [OTHERS, OWN], [9, 9], b"x")
    });
    assert_eq!(bench.drops("b"), [("source_guard_ip".into(), 1)]);
    // The lease holds while other settings change, but not under another kind of guard.
    assert_eq!(bench.set("a", "addresses=10.7.0.0/16"), Response::Ok);
    let guard = || bench.port("a").guard.unwrap();
    assert_eq!(guard().leases.len(), 1);
    assert_eq!(bench.set("a", "source_guard=configured"), Response::Ok);
    assert_eq!(guard().leases, []);
}

/// An ARP request of guest `from` for `address`.
fn who_has(from: u8, address: [u8; 4]) -> Vec<u8> {
    let asks = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac(from), &OWN, &[0; 6], &address].concat();
    to_all(from, 0x0806, &asks)
}

#[test]
fn isolated_guests_reach_who_is_not_isolated_and_none_of_each_others_frames() {
    let bench = Bench::with(
        "[network.guests]\nvlan = 10\nisolated = true\n[vif.a]\nnetwork = \"guests\"\nmac_check = false\n\
         [vif.b]\nnetwork = \"guests\"\nmac_check = false\n[vif.c]\nnetwork = \"guests\"\nisolated = false\n\
         mac_check = false\n",
    );
    let (_a, mut a) = bench.guest("a", 1, 1);
    let (_b, mut b) = bench.guest("b", 2, 1);
    let (_c, mut c) = bench.guest("c", 3, 1);
    let multicast = |group: [u8; 6]| [&group[..], &mac(1), &[0x88, 0xb5], &[7; 60]].concat();
    let flooded = [
        plain(1, 9, 60),
        to_all(1, 0x88b5, &[7; 60]),
        multicast([1, 0, 0x5e, 0, 0, 251]),
        multicast([0x33, 0x33, 0, 0, 0, 1]),
        who_has(1, OTHERS),
        arp(1, OWN),
        advertisement(1, "fd00::1", "fd00::1"),
        udp(1, [OWN, [255; 4]], [68, 67], b"dhcp"),
    ];
    for frame in &flooded {
        send_frame(&mut a[0], frame);
        assert_eq!(next(&mut c[0]), *frame, "who is not isolated gets it");
    }
    // By now b's address is known, and c sends to both.
    send_frame(&mut b[0], &plain(2, 3, 46));
    assert_eq!(next(&mut c[0]), plain(2, 3, 46));
    for to in [1, 2] {
        send_frame(&mut c[0], &plain(3, to, 46));
    }
    assert_eq!(next(&mut a[0]), plain(3, 1, 46));
    send_frame(&mut a[0], &plain(1, 2, 60));
    send_frame(&mut a[0], &plain(1, 3, 60));
    assert_eq!(next(&mut c[0]), plain(1, 3, 60));
    assert_eq!(next(&mut b[0]), plain(3, 2, 46), "the first that has come to it at all");
    assert_eq!([bench.drops("a"), bench.drops("b")], [vec![("isolated".into(), 1)], vec![]]);

    // The setting changes under traffic, also for frames whose path is cached.
    assert_eq!(bench.set("b", "isolated=false"), Response::Ok);
    send_frame(&mut b[0], &plain(2, 1, 46));
    assert_eq!(next(&mut a[0]), plain(2, 1, 46));
    for _ in 0..2 {
        send_frame(&mut a[0], &plain(1, 2, 60));
        assert_eq!(next(&mut b[0]), plain(1, 2, 60));
    }
    assert_eq!(bench.set("b", "isolated=none"), Response::Ok);
    send_frame(&mut b[0], &plain(2, 3, 46));
    assert_eq!(next(&mut c[0]), plain(2, 3, 46));
    send_frame(&mut a[0], &plain(1, 2, 60));
    eventually("it is dropped", || bench.drops("a") == [("isolated".into(), 2)]);
    let said = |to| {
        let frame = if to == 0 { to_all(1, 0x88b5, &[7; 60]) } else { plain(1, to, 60) };
        let trace = bench.switch.trace(&"a".parse().unwrap(), &frame).unwrap();
        trace.steps.iter().map(|step| step.says.clone() + "\n").collect::<String>()
    };
    assert!(
        said(2).contains("is behind an isolated interface, and so is the sender"),
        "{}",
        said(2)
    );
    assert!(said(2).contains("counted as isolated"), "{}", said(2));
    assert!(said(0).contains("flooded, but to no other isolated interface"), "{}", said(0));
}
