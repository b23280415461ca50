//! The same frames through weir, and through the kernel as with QEMU: from one TAP by a Linux bridge to another one,
//! and by the kernel's VXLAN device to another host. The arriving frames must be equal, byte for byte, or
//! [`DOCUMENTED`] and [`DOCUMENTED_OF_VXLAN`] name the document that explains the difference.

mod kinds;
mod snooping;

use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weir_port_tap::{Tap, TapOptions};
use weir_vif::Features;
use weir_wire::{VnetHdr, vnet};

use super::*;
use kinds::Kind;

/// The differences: parts of the frames' names, and the document that explains them.
const DOCUMENTED: &[(&[&str], &str)] = &[
    (&["a byte more than a full frame"], LENGTHS),
    (&["nothing but a header behind"], LENGTHS),
    (&["a byte behind"], LENGTHS),
    (&["GSO", "behind 43 (104)", "without offloads"], "docs/design/data-path.md#0053"),
];
const LENGTHS: &str = "docs/design/l2.md#0026, Lengths";

/// A frame that arrived. Its checksum is completed, except for a GSO frame, which is as it came, with the fields of
/// its header.
#[derive(Clone, PartialEq, Eq)]
struct Arrived {
    bytes: Vec<u8>,
    gso: Option<(u8, u16, u16, u16)>,
}

impl Arrived {
    fn new(header: &VnetHdr, bytes: &[u8]) -> Self {
        let VnetHdr { gso_type, gso_size, csum_start, csum_offset, .. } = *header;
        match gso_type {
            vnet::GSO_NONE => Self { bytes: completed(header, bytes), gso: None },
            _ => {
                let gso = Some((gso_type, gso_size, csum_start, csum_offset));
                Self { bytes: bytes.to_vec(), gso }
            }
        }
    }
}

impl std::fmt::Debug for Arrived {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let front: String = self.bytes.iter().take(80).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        write!(out, "{} bytes {:?} {front}", self.bytes.len(), self.gso)
    }
}

/// The frame after a device has filled in the checksum that the header asks for (virtio 1.2 §5.1.6.2.2).
fn completed(header: &VnetHdr, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if header.flags & vnet::F_NEEDS_CSUM != 0 {
        let start = usize::from(header.csum_start);
        let mut sum = 0_u64;
        for pair in frame[start..].chunks(2) {
            sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
        }
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        let checksum = if sum == 0xffff { 0xffff } else { !(sum as u16) };
        let at = start + usize::from(header.csum_offset);
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}

/// A frame that is sent after the frames of a kind: all frames that arrive before it belong to that kind.
fn last(number: usize) -> Vec<u8> {
    let number = (number as u32).to_be_bytes();
    [&mac(2)[..], &mac(1), &[0x88, 0xb6], &number, &[0; 42]].concat()
}

/// The process that keeps a network namespace alive.
struct Namespace(Child);

impl Namespace {
    /// Runs `body` in a thread in the namespace.
    fn within<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        let path = format!("/proc/{}/ns/net", self.0.id());
        let thread = std::thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(File::open(path).unwrap().as_fd(), network).unwrap();
            body()
        });
        thread.join().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// TAPs on a bridge in their own network namespace.
struct Kernel<const N: usize> {
    namespace: Namespace,
    taps: [Tap; N],
}

impl<const N: usize> Kernel<N> {
    /// A bridge `br0` with these options. `set_up` changes its TAPs before the bridge is up.
    fn start(
        options: &'static str,
        names: [&'static str; N],
        set_up: impl FnOnce() + Send + 'static,
    ) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped());
        let mut namespace = Namespace(unshare.spawn().unwrap());
        let mut ready = [0];
        std::io::Read::read_exact(namespace.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let taps = namespace.within(move || {
            for key in ["net/ipv6/conf/default/disable_ipv6", "net/ipv6/conf/all/disable_ipv6"] {
                std::fs::write(format!("/proc/sys/{key}"), "1").unwrap();
            }
            for table in ["iptables", "ip6tables", "arptables"] {
                let _ = std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{table}"), "0");
            }
            run(&format!("ip link add br0 type bridge forward_delay 0 {options}"));
            let taps = names.map(|name| {
                let options =
                    TapOptions { name: name.into(), queues: 1, mtu: Some(1500), mac: None };
                let tap = Tap::open(&options).unwrap();
                run(&format!("ip link set dev {name} master br0"));
                tap
            });
            set_up();
            run("ip link set br0 up");
            taps
        });
        Self { namespace, taps }
    }

    /// A guest sends a frame.
    fn send(&self, from: usize, header: &VnetHdr, frame: &[u8]) {
        let bytes = [&header.to_bytes(), frame].concat();
        match rustix::io::write(&self.taps[from].queues()[0], &bytes) {
            Ok(_) | Err(Errno::INVAL) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Calls `each` with the frames that arrive at a guest before the frame that ends with `last`.
    fn receive(&self, at: usize, last: &[u8], mut each: impl FnMut(&VnetHdr, &[u8])) {
        let mut bytes = vec![0; 70_000];
        eventually("the kernel passes the last frame", || {
            while let Ok(len) = rustix::io::read(&self.taps[at].queues()[0], &mut bytes) {
                let (header, frame) = bytes[..len].split_first_chunk().unwrap();
                if frame.ends_with(last) {
                    return true;
                }
                each(&VnetHdr::from_bytes(header), frame);
            }
            false
        });
    }
}

impl Kernel<2> {
    /// The frames that arrive for a frame of a guest.
    fn pass(&self, header: &VnetHdr, frame: &[u8], number: usize) -> Vec<Arrived> {
        let last = last(number);
        self.send(0, header, frame);
        self.send(0, &VnetHdr::default(), &last);
        let mut arrived = Vec::new();
        self.receive(1, &last, |header, frame| {
            if frame[6..12] == mac(1) {
                arrived.push(Arrived::new(header, frame));
            }
        });
        arrived
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A running guest, which leaves checksums and segments to weir unless it has offloads.
fn connect(bench: &Bench, vif: &str, number: u8, has_offloads: bool) -> (Guest, Vec<QueuePair>) {
    let mut options = VifOptions::new(Mac(mac(number)));
    if !has_offloads {
        options.features = options.features
            - Features::GUEST_CSUM
            - Features::GUEST_TSO4
            - Features::GUEST_TSO6
            - Features::GUEST_ECN
            - Features::GUEST_USO4
            - Features::GUEST_USO6;
    }
    options.rx_buffer_bytes = 4096;
    let mut guest = Guest::connect(bench.dir.path().join(format!("{vif}.sock")), &options).unwrap();
    let pairs = guest.queue_pairs();
    eventually("all rings start", || bench.numbers(vif).in_use == 1);
    (guest, pairs)
}

/// The frames that arrive at guest `b` for a frame that guest `a` sends through weir.
fn pass(
    [a, b]: [&mut QueuePair; 2],
    header: &VnetHdr,
    frame: &[u8],
    number: usize,
) -> Vec<Arrived> {
    let last = last(number);
    for (frame, header) in [(frame, header), (&last, &VnetHdr::default())] {
        eventually("room to send", || a.send_raw(frame, header).is_ok());
    }
    a.flush();
    let (mut arrived, mut bytes) = (Vec::new(), Vec::new());
    eventually("weir passes the last frame", || {
        while let Some(received) = b.recv_into(&mut bytes) {
            if bytes == last {
                return true;
            }
            arrived.push(Arrived::new(&received.header, &bytes));
        }
        false
    });
    arrived
}

/// The frames that a trunk would pass, from those of a bridge that knows no VLANs: a tag without a VLAN, or of the
/// native one, counts as no tag (docs/guide/configuration.md, VLANs).
fn as_by_a_trunk(kind: &Kind, passed: Vec<Arrived>) -> Vec<Arrived> {
    if !matches!(kind.tags.first(), Some((_, tci)) if matches!(tci & 0xfff, 0 | 1)) {
        return passed;
    }
    let without_tag = |Arrived { mut bytes, gso }: Arrived| {
        bytes.drain(12..16);
        Arrived {
            bytes,
            gso: gso.map(|(kind, size, start, offset)| (kind, size, start - 4, offset)),
        }
    };
    passed.into_iter().map(without_tag).collect()
}

/// A port with a provider's tags gets all kinds that begin with one, and other ports get the rest.
/// A bridge does not distinguish them.
fn is_for(kind: &Kind, tag_protocol: &str) -> bool {
    let begins_with_service_tag = kind.tags.first().is_some_and(|(kind, _)| *kind == 0x88a8);
    (tag_protocol == "802.1ad") == begins_with_service_tag
}

#[test]
fn root_frames_pass_as_by_the_kernels_bridge_byte_for_byte() {
    if !weir_testing::is_root("TAPs on a bridge") {
        return;
    }
    let kinds = kinds::all();
    let (mut compared, mut documented, mut faults) = (0, 0, Vec::new());
    let mut used = vec![0; DOCUMENTED.len()];
    for has_offloads in [true, false] {
        let set_up: fn() = match has_offloads {
            true => || (),
            false => || run("ethtool -K t1 tx off tx-udp-segmentation off"),
        };
        let kernel = Kernel::start("mcast_snooping 0", ["t0", "t1"], set_up);
        for tag_protocol in ["802.1q", "802.1ad"] {
            let vif = format!(
                "trunk = \"all\"\nnative = 1\nmac_check = false\nmtu = 1500\ntag_protocol = \"{tag_protocol}\"\n"
            );
            let bench = Bench::with(&format!("[vif.a]\n{vif}[vif.b]\n{vif}"));
            let [(_a, mut a), (_b, mut b)] = [("a", 1), ("b", 2)]
                .map(|(name, number)| connect(&bench, name, number, has_offloads));
            for (number, kind) in kinds.iter().enumerate() {
                if !is_for(kind, tag_protocol) {
                    continue;
                }
                compared += 1;
                let passed = kernel.pass(&kind.header, &kind.frame, number);
                let expected = as_by_a_trunk(kind, passed);
                let got = pass([&mut a[0], &mut b[0]], &kind.header, &kind.frame, number);
                if got == expected {
                    continue;
                }
                let name = match has_offloads {
                    true => kind.name.clone(),
                    false => format!("{} to one without offloads", kind.name),
                };
                match DOCUMENTED
                    .iter()
                    .position(|(parts, _)| parts.iter().all(|part| name.contains(part)))
                {
                    Some(place) => {
                        used[place] += 1;
                        documented += 1;
                    }
                    None => faults.push(format!(
                        "{name}\n  kernel {expected:?}\n  weir   {got:?}\n  drops {:?} {:?}",
                        bench.drops("a"),
                        bench.drops("b")
                    )),
                }
            }
        }
    }
    println!(
        "{} kinds of frames, {compared} comparisons: {documented} differ as documented, {} otherwise",
        kinds.len(),
        faults.len()
    );
    for ((parts, place), used) in DOCUMENTED.iter().zip(&used) {
        println!("{used} with {parts:?}: {place}");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(used.iter().all(|used| *used > 0), "what does not differ needs no reason");
}

/// The differences between the two tunnels, as in [`DOCUMENTED`].
const DOCUMENTED_OF_VXLAN: &[(&[&str], &str)] = &[
    (&["tag"], "docs/design/overlay.md#0042, What differs"),
    (&["of class 3", "as packets"], "docs/design/overlay.md#0042, Traffic class"),
    (&["a byte more than a full frame"], LENGTHS),
    (&["GSO", "behind 43 (104)"], "docs/design/data-path.md#0053"),
];

/// Versions of IP in the underlay, with the way that the DSCP of its packets is chosen: in weir's words, and in the
/// kernel's.
const UNDERLAYS: [(&str, &str, &str); 2] =
    [("192.0.2.", "46", "tos 0xb8 df set"), ("fd00::", "\"inherit\"", "tos inherit")];

/// Gives `u0` the address of this underlay that ends with `own`, and takes it from the bridge. The other end is at
/// `other`.
fn join(underlay: &str, own: u8, other: u8) {
    std::fs::write("/proc/sys/net/ipv6/conf/u0/disable_ipv6", "0").unwrap();
    run(&format!("ip link set dev u0 nomaster address 02:00:00:00:00:0{own} mtu 1600"));
    // What the kernel would leave to a network card is done before the wire.
    run("ethtool -K u0 tx off tx-udp-segmentation off");
    let (len, nodad) = if underlay.contains(':') { (64, " nodad") } else { (24, "") };
    run(&format!("ip addr add {underlay}{own}/{len} dev u0{nodad}"));
    let lladdr = format!("lladdr 02:00:00:00:00:0{other} nud permanent");
    run(&format!("ip neigh replace {underlay}{other} {lladdr} dev u0"));
}

/// A bridge with the TAP `t0`, and a VXLAN device between it and the underlay.
fn tunnel(underlay: &'static str, options: &'static str, own: u8, other: u8) -> Kernel<2> {
    Kernel::start("mcast_snooping 0", ["t0", "u0"], move || {
        join(underlay, own, other);
        let ends = format!("local {underlay}{own} remote {underlay}{other} dstport 4789");
        run(&format!("ip link add vx type vxlan id 7 {ends} {options}"));
        // The other end of a tunnel passes on the segments that it gets.
        run("ethtool -K vx gro off");
        run("ip link set dev vx mtu 1500 master br0 up");
    })
}

/// A weir with an interface in a network that spans hosts, in a namespace with its underlay.
fn overlay(
    underlay: &'static str,
    dscp: &'static str,
    vif: &'static str,
    [own, other]: [u8; 2],
) -> (Kernel<1>, Bench, Guest, QueuePair) {
    let wire = Kernel::start("mcast_snooping 0", ["u0"], move || join(underlay, own, other));
    let bench = wire.namespace.within(move || {
        Bench::with(&format!(
            "[overlay]\nlocal = \"{underlay}{own}\"\ninterface = \"u0\"\nmtu = 1500\ndscp = {dscp}\n\
             [network.blue]\nvni = 7\npeers = [\"{underlay}{other}\"]\n\
             [vif.{vif}]\nnetwork = \"blue\"\nmac_check = false\nmtu = 1500\n"
        ))
    });
    // The far guest gets segments that weir has put together as they came.
    let (guest, mut pairs) = connect(&bench, vif, own, own == 1);
    (wire, bench, guest, pairs.remove(0))
}

/// A packet of the underlay that has passed the wire.
#[derive(Clone, Debug)]
struct Outer {
    bytes: Vec<u8>,
    /// The place of the UDP header.
    udp_at: usize,
}

impl Outer {
    /// The packet if it carries a frame: no traffic of the kernel's own, and no words between weirs, which have no I flag.
    fn new(header: &VnetHdr, bytes: &[u8]) -> Option<Self> {
        let udp_at = match bytes[12..14] {
            [0x08, 0x00] if bytes[23] == 17 => 34,
            [0x86, 0xdd] if bytes[20] == 17 => 54,
            _ => return None,
        };
        assert_eq!((header.flags & vnet::F_NEEDS_CSUM, header.gso_type), (0, vnet::GSO_NONE));
        let is_vxlan = bytes[udp_at + 2..udp_at + 4] == 4789_u16.to_be_bytes();
        let is_vxlan = is_vxlan && bytes[udp_at + 8] & 8 != 0;
        is_vxlan.then(|| Self { bytes: bytes.to_vec(), udp_at })
    }

    /// The headers as far as they are fixed. The sender chooses the UDP port (RFC 7348 §5) and, beside DF, the
    /// identification (RFC 6864 §4.1). Checksums count as "ok", "none" or "wrong".
    fn headers(&self) -> (Vec<u8>, &'static str, &'static str) {
        let (ip, udp) = self.bytes[14..].split_at(self.udp_at - 14);
        let (v4, addresses) =
            if ip[0] >> 4 == 4 { (true, &ip[12..20]) } else { (false, &ip[8..40]) };
        let ip_sum = if !v4 {
            "none"
        } else if internet_sum(&[ip]) == 0xffff {
            "ok"
        } else {
            "wrong"
        };
        let pseudo = [0, 17, udp[4], udp[5]];
        let udp_sum = match (&udp[6..8], internet_sum(&[addresses, &pseudo, udp])) {
            ([0, 0], _) => "none",
            (_, 0xffff) => "ok",
            _ => "wrong",
        };
        let mut bytes = self.bytes[..self.udp_at + 16].to_vec();
        if v4 {
            bytes[18..20].fill(0);
            bytes[24..26].fill(0);
        } else {
            // The flow label (RFC 6437) is the sender's choice as well.
            bytes[15] &= 0xf0;
            bytes[16..18].fill(0);
        }
        bytes[self.udp_at..self.udp_at + 2].fill(0);
        bytes[self.udp_at + 6..self.udp_at + 8].fill(0);
        (bytes, ip_sum, udp_sum)
    }

    /// The headers, and the frame inside.
    fn parts(&self) -> impl std::fmt::Debug {
        let inner = Arrived { bytes: self.bytes[self.udp_at + 16..].to_vec(), gso: None };
        (self.headers(), inner)
    }

    /// The packet after a router has set its mark of congestion.
    fn marked(&self, ecn: u8) -> Self {
        let mut marked = self.clone();
        let ip = &mut marked.bytes[14..self.udp_at];
        if ip[0] >> 4 == 4 {
            ip[1] = ip[1] & 0xfc | ecn;
            ip[10..12].fill(0);
            let checksum = !internet_sum(&[ip]);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            ip[1] = ip[1] & 0xcf | ecn << 4;
        }
        marked
    }
}

/// The sum of RFC 1071 over these parts, each but the last of an even length.
fn internet_sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0_u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The packets on the wire, the TAP with this number, to the one with the frame `last`.
fn on_the_wire(tap: &Tap, last: &[u8]) -> Vec<Outer> {
    let (mut packets, mut bytes) = (Vec::new(), vec![0; 70_000]);
    eventually("the last frame is on the wire", || {
        while let Ok(len) = rustix::io::read(&tap.queues()[0], &mut bytes) {
            let (header, packet) = bytes[..len].split_first_chunk().unwrap();
            packets.extend(Outer::new(&VnetHdr::from_bytes(header), packet));
            if packet.ends_with(last) {
                return true;
            }
        }
        false
    });
    packets
}

/// Both ends of a tunnel between two kernels, and of one between two weirs.
struct Tunnels {
    kernels: [Kernel<2>; 2],
    wires: [Kernel<1>; 2],
    benches: [Bench; 2],
    guests: [(Guest, QueuePair); 2],
}

impl Tunnels {
    fn new((underlay, dscp, options): (&'static str, &'static str, &'static str)) -> Self {
        let kernels = [(1, 2), (2, 1)].map(|(own, other)| tunnel(underlay, options, own, other));
        let [near, far] =
            [("a", [1, 2]), ("b", [2, 1])].map(|(vif, ends)| overlay(underlay, dscp, vif, ends));
        let mut tunnels = Self {
            kernels,
            wires: [near.0, far.0],
            benches: [near.1, far.1],
            guests: [(near.2, near.3), (far.2, far.3)],
        };
        // A station at the far end says where it is.
        let hello = [&[0xff; 6][..], &mac(2), &[0x88, 0xb6], &[0xff; 46]].concat();
        tunnels.kernels[1].send(0, &VnetHdr::default(), &hello);
        for packet in on_the_wire(&tunnels.kernels[1].taps[1], &hello) {
            tunnels.wires[0].send(0, &VnetHdr::default(), &packet.bytes);
            tunnels.kernels[0].send(1, &VnetHdr::default(), &packet.bytes);
        }
        tunnels.kernels[0].receive(0, &hello, |_, _| ());
        tunnels.hear(0, &hello);
        tunnels
    }

    /// The frames that arrive at the guest of a weir before the frame `last`.
    fn hear(&mut self, end: usize, last: &[u8]) -> Vec<Arrived> {
        let (mut arrived, mut bytes) = (Vec::new(), Vec::new());
        eventually("weir passes the last frame", || {
            while let Some(received) = self.guests[end].1.recv_into(&mut bytes) {
                if bytes == last {
                    return true;
                }
                arrived.push(Arrived::new(&received.header, &bytes));
            }
            false
        });
        arrived
    }

    /// The packets that a frame becomes, by the kernel and by weir, and the packets with the frames `lasts`. Flows may
    /// overtake each other, but the second of these frames is sent when the first one is on the wire.
    fn enter(&mut self, kind: &Kind, lasts: &[Vec<u8>; 2]) -> ([Vec<Outer>; 2], Vec<Outer>) {
        let (kernel, pair) = (&self.kernels[0], &mut self.guests[0].1);
        let wires = [&kernel.taps[1], &self.wires[0].taps[0]];
        let mut sent = [Vec::new(), Vec::new()];
        let plain = VnetHdr::default();
        let [first, second] = lasts;
        for frames in [&[(&kind.frame, &kind.header), (first, &plain)][..], &[(second, &plain)]] {
            for (frame, header) in frames {
                kernel.send(0, header, frame);
                eventually("room to send", || pair.send_raw(frame, header).is_ok());
            }
            pair.flush();
            let (last, _) = frames[frames.len() - 1];
            for (wire, sent) in wires.iter().zip(&mut sent) {
                sent.extend(on_the_wire(wire, last));
            }
        }
        let is_last = |packet: &Outer| lasts.iter().any(|last| packet.bytes.ends_with(last));
        let ends = sent[0].iter().filter(|packet| is_last(packet)).cloned().collect();
        sent.iter_mut().for_each(|packets| packets.retain(|packet| !is_last(packet)));
        (sent, ends)
    }

    /// The frames that packets become, by the kernel and by weir, with those packets behind them.
    fn leave(&mut self, packets: &[Outer], ends: &[Outer]) -> [Vec<Arrived>; 2] {
        let (mut by_kernel, mut by_weir) = (Vec::new(), Vec::new());
        for (end, packets) in ends.iter().zip([packets, &[]]) {
            for packet in packets.iter().chain([end]) {
                self.kernels[1].send(1, &VnetHdr::default(), &packet.bytes);
                self.wires[1].send(0, &VnetHdr::default(), &packet.bytes);
            }
            let last = &end.bytes[end.udp_at + 16..];
            let each = |header: &VnetHdr, frame: &[u8]| by_kernel.push(Arrived::new(header, frame));
            self.kernels[1].receive(0, last, each);
            by_weir.extend(self.hear(1, last));
        }
        [by_kernel, by_weir]
    }

    fn drops(&self) -> String {
        let [near, far] = &self.benches;
        let ports = [(near, "a"), (near, "overlay"), (far, "overlay"), (far, "b")];
        format!("{:?}", ports.map(|(bench, port)| bench.drops(port)))
    }
}

#[test]
fn root_frames_pass_as_by_the_kernels_vxlan_device_byte_for_byte() {
    if !weir_testing::is_root("TAPs and VXLAN devices") {
        return;
    }
    let kinds = kinds::all();
    let (mut compared, mut documented, mut faults) = (0, 0, Vec::new());
    let mut used = vec![0; DOCUMENTED_OF_VXLAN.len()];
    for underlay in UNDERLAYS {
        let mut tunnels = Tunnels::new(underlay);
        for (number, kind) in kinds.iter().enumerate() {
            let lasts = [last(number), last(number + kinds.len())];
            let ([by_kernel, by_weir], ends) = tunnels.enter(kind, &lasts);
            let mut pairs = vec![(
                "as packets".to_owned(),
                [&by_kernel, &by_weir].map(|packets| {
                    format!("{:?}", packets.iter().map(Outer::parts).collect::<Vec<_>>())
                }),
            )];
            let arrived = |arrived: [Vec<Arrived>; 2]| arrived.map(|frames| format!("{frames:?}"));
            let [expected, got] = arrived(tunnels.leave(&by_kernel, &ends));
            let [of_weir, _] = arrived(tunnels.leave(&by_weir, &ends));
            pairs.push(("at a VXLAN device".into(), [expected.clone(), of_weir]));
            pairs.push(("out of a packet".into(), [expected, got]));
            for ecn in (0..4).filter(|_| kind.name.contains("of class")) {
                let packets: Vec<_> = by_kernel.iter().map(|packet| packet.marked(ecn)).collect();
                let left = arrived(tunnels.leave(&packets, &ends));
                pairs.push((format!("out of a packet that was marked {ecn}"), left));
            }
            for (place, [kernel, weir]) in pairs {
                compared += 1;
                if kernel == weir {
                    continue;
                }
                let name = format!("{} {place}", kind.name);
                let is_it = |(parts, _): &(&[&str], &str)| parts.iter().all(|it| name.contains(it));
                if let Some(at) = DOCUMENTED_OF_VXLAN.iter().position(is_it) {
                    used[at] += 1;
                    documented += 1;
                } else {
                    let drops = tunnels.drops();
                    faults.push(format!(
                        "{name}\n  kernel {kernel}\n  weir   {weir}\n  drops {drops}"
                    ));
                }
            }
        }
    }
    println!(
        "{} kinds of frames, {compared} comparisons: {documented} differ as documented, {} otherwise",
        kinds.len(),
        faults.len()
    );
    for ((parts, place), used) in DOCUMENTED_OF_VXLAN.iter().zip(&used) {
        println!("{used} with {parts:?}: {place}");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(used.iter().all(|used| *used > 0), "what does not differ needs no reason");
}
