//! Interfaces that receive copies of other ports' frames.

use weir_wire::VnetHdr;

use super::*;

/// The last byte of each received frame, until there are `count`.
fn numbers(pair: &mut QueuePair, count: usize) -> Vec<u8> {
    let (mut seen, mut frame) = (Vec::new(), Vec::new());
    eventually("frames come", || {
        while pair.recv_into(&mut frame).is_some() {
            seen.extend(frame.last());
            frame.clear();
        }
        seen.len() >= count
    });
    seen
}

fn nothing(pair: &mut QueuePair) {
    std::thread::sleep(Duration::from_millis(30));
    assert!(pair.recv(|_| ()).is_none());
}

fn refusal(response: Response) -> String {
    match response {
        Response::Error { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mirror_sees_two_guests_talk_and_says_nothing() {
    let bench = Bench::with("[vif.a]\n[vif.b]\n[vif.c]\nmirror = [\"a\"]\n");
    let [(_a, mut a), (_b, mut b), (_c, mut c)] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(vif, number)| bench.guest(vif, number, 1));
    send(&mut b[0], [0xff; 6], 2, &[1]);
    assert_eq!(numbers(&mut a[0], 1), [1]);
    send(&mut a[0], mac(2), 1, &[2]);
    assert_eq!(numbers(&mut b[0], 1), [2]);
    assert_eq!(numbers(&mut c[0], 2), [1, 2], "what a received, then what it sent");
    send(&mut c[0], [0xff; 6], 3, &[3]);
    eventually("what it sends is dropped", || bench.port("c").dropped() == 1);
    nothing(&mut a[0]);
    nothing(&mut b[0]);
}

/// A TCP segment of 3,000 bytes to be cut to 1,000, with its virtio header and its checksum pending.
fn segment(to: u8, from: u8) -> (Vec<u8>, VnetHdr) {
    let mut frame = [&mac(to)[..], &mac(from), &[8, 0]].concat();
    frame.extend([0x45, 0, 0x0b, 0xe0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x0f, 0xa0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.resize(54 + 3000, 7);
    let header = VnetHdr {
        flags: weir_wire::vnet::F_NEEDS_CSUM,
        gso_type: weir_wire::vnet::GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    (frame, header)
}

#[test]
fn a_copy_comes_whole_to_a_guest_with_offloads_and_in_segments_to_one_without() {
    let bench =
        Bench::with("[vif.a]\n[vif.b]\n[vif.c]\nmirror = [\"a\"]\n[vif.d]\nmirror = [\"a\"]\n");
    let [(_a, mut a), (_b, mut b), (_c, mut c)] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(vif, number)| bench.guest(vif, number, 1));
    let socket = bench.dir.path().join("d.sock");
    let plain = VifOptions::new(Mac(mac(4)));
    use weir_vif::Features;
    let features = Features::VERSION_1 | Features::MRG_RXBUF;
    let mut plain = Guest::connect(socket, &VifOptions { features, ..plain }).unwrap();
    let mut d = plain.queue_pairs();
    eventually("all rings start", || bench.numbers("d").in_use == 1);
    send(&mut b[0], [0xff; 6], 2, &[1]);
    assert_eq!(
        (numbers(&mut a[0], 1), numbers(&mut c[0], 1), numbers(&mut d[0], 1)),
        (vec![1], vec![1], vec![1])
    );

    let (frame, header) = segment(2, 1);
    a[0].send_raw(&frame, &header).unwrap();
    a[0].flush();
    let received = |pair: &mut QueuePair, count| {
        let (mut seen, mut bytes) = (Vec::new(), Vec::new());
        eventually("frames come", || {
            seen.extend(pair.recv_into(&mut bytes));
            seen.len() >= count
        });
        seen
    };
    let copy = received(&mut c[0], 1)[0];
    assert_eq!((copy.len, copy.header.gso_size, copy.header.csum_start), (3054, 1000, 34));
    let cut = received(&mut d[0], 3);
    assert!(cut.iter().all(|segment| segment.len == 1054 && segment.header.flags == 0), "{cut:?}");
}

#[test]
fn mirrors_follow_what_is_set_and_which_ports_are_there() {
    let bench = Bench::new();
    let [(_a, mut a), (_b, mut b), (_c, mut c)] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(vif, number)| bench.guest(vif, number, 1));
    let note = "there is no port later yet: c gets copies when it comes, and is in no VLAN".into();
    assert_eq!(bench.set("c", "mirror=a,later"), Response::Noted { note });
    assert_eq!(
        bench.set("c", "memory_max=1GiB mirror=a,b"),
        Response::Noted { note: "memory_max: when its front end shares memory again".into() }
    );
    assert!(matches!(bench.set("c", "mirror=a,later"), Response::Noted { .. }));
    send(&mut a[0], [0xff; 6], 1, &[1]);
    assert_eq!(numbers(&mut c[0], 1), [1]);
    assert_eq!(numbers(&mut b[0], 1), [1]);

    assert!(refusal(bench.set("c", "mirror=c")).contains("c mirrors itself"));
    assert!(refusal(bench.set("b", "mirror=c")).contains("b mirrors c, which is a mirror"));
    assert!(refusal(bench.set("a", "mirror=b")).contains("c mirrors a, which is a mirror"));

    // Interfaces are added and removed.
    let socket = SocketPath::try_from(bench.dir.path().join("later.sock").as_path()).unwrap();
    let later = || VifConfig::new(name("later"), socket.clone());
    for round in 10..12 {
        let added = bench.switch.handle(Request::VifAdd { config: later().into() });
        assert!(matches!(added, Response::Ok), "{added:?}");
        let (guest, mut pairs) = bench.guest("later", 4, 1);
        send(&mut pairs[0], [0xff; 6], 4, &[round]);
        assert_eq!(numbers(&mut b[0], 1), [round]);
        // The copies are the frame that `later` sent and the one that `a` received.
        assert_eq!(numbers(&mut c[0], 2), [round; 2]);
        assert_eq!(numbers(&mut a[0], 1), [round]);
        drop((guest, pairs));
        let removed = bench.switch.handle(Request::VifDel { name: name("later") });
        assert!(matches!(removed, Response::Ok), "{removed:?}");
    }

    // The interface is an ordinary one again.
    assert!(matches!(bench.set("c", "mirror=none"), Response::Ok));
    assert!(bench.switch.mirrors.lock().unwrap().is_empty());
    send(&mut a[0], mac(9), 1, &[5]);
    assert_eq!(numbers(&mut b[0], 1), [5]);
    assert_eq!(numbers(&mut c[0], 1), [5], "flooded, once");
    send(&mut c[0], [0xff; 6], 3, &[6]);
    assert_eq!(numbers(&mut a[0], 1), [6]);
    nothing(&mut c[0]);
}

#[test]
fn a_mirror_has_nothing_that_holds_for_no_copy_whichever_came_first() {
    let bench = Bench::with(
        "[vif.a]\n[vif.b]\nrx_rate = \"1Gbit\"\n[vif.c]\nmirror = [\"a\"]\n[vif.d]\nmtu = 9000\n[vif.f]\n",
    );
    let why = |port: &str, key: &str| {
        format!("{port} has `mirror` and `{key}`, which does not hold for copies")
    };
    assert_eq!(refusal(bench.set("b", "mirror=a")), why("b", "rx_rate"));
    assert!(matches!(bench.set("b", "mirror=a rx_rate=none"), Response::Ok));
    assert_eq!(refusal(bench.set("c", "rx_rate=1Mbit")), why("c", "rx_rate"));
    assert_eq!(
        refusal(bench.set("c", "rx_packets_per_second=9")),
        why("c", "rx_packets_per_second")
    );
    assert_eq!(refusal(bench.set("d", "mirror=a")), why("d", "mtu"));

    let filter = |port: &str, rules: &[&str]| {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        bench.switch.handle(Request::FilterSet { name: name(port), rules })
    };
    assert_eq!(refusal(filter("c", &["rx drop"])), why("c", "filter"));
    assert!(matches!(filter("c", &[]), Response::Ok));
    assert!(matches!(filter("f", &["rx drop udp port 9"]), Response::Ok));
    assert!(matches!(bench.set("c", "mirror=b"), Response::Error { .. }), "b is a mirror");
    assert_eq!(refusal(bench.set("f", "mirror=d")), why("f", "filter"));

    // A configuration from an API client has not passed the parser.
    let socket = SocketPath::try_from(bench.dir.path().join("e.sock").as_path()).unwrap();
    let mut config = VifConfig::new(name("e"), socket);
    config.vlan = weir_config::VlanMode::Mirror("a".parse().unwrap());
    config.mtu = Some(9000.try_into().unwrap());
    let added = bench.switch.handle(Request::VifAdd { config: config.into() });
    assert_eq!(refusal(added), why("e", "mtu"));
}

#[test]
fn a_mirror_that_is_not_read_loses_copies_that_are_counted_and_nobody_elses_frames() {
    const FRAMES: usize = 3000;
    let bench = Bench::with("[vif.a]\n[vif.b]\n[vif.c]\nmirror = [\"a\"]\n");
    let [(_a, mut a), (_b, mut b), (_c, c)] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(vif, number)| bench.guest(vif, number, 1));
    // Frames for b alone wait for b if it is slow.
    send(&mut b[0], [0xff; 6], 2, &[0]);
    numbers(&mut a[0], 1);
    let got = std::thread::scope(|scope| {
        let reading = scope.spawn(|| numbers(&mut b[0], FRAMES).len());
        for n in 0..FRAMES {
            // The sender is no faster than b reads.
            eventually("b has room", || bench_room(&bench, n));
            send(&mut a[0], mac(2), 1, &[n as u8]);
        }
        reading.join().unwrap()
    });
    assert_eq!(got, FRAMES);
    let copied = || bench.port("c").rx.frames + bench.port("c").dropped();
    eventually("no copy is unsaid", || copied() == FRAMES as u64 + 1);
    assert!(bench.port("c").drops["rx_ring_full"] > 0);
    drop(c);
}

/// True if b's ring has room for frame `n`.
fn bench_room(bench: &Bench, n: usize) -> bool {
    !n.is_multiple_of(64) || bench.port("b").rx.frames >= n.saturating_sub(64) as u64
}
