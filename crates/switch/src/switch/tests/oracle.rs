//! The same frames through weir, and through the kernel as with QEMU: from one TAP by a Linux bridge to another one.
//! The arriving frames must be equal, byte for byte, or [`DOCUMENTED`] names the document that explains the
//! difference.

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
    fn start(options: &'static str, names: [&'static str; N], set_up: fn()) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped());
        let mut namespace = Namespace(unshare.spawn().unwrap());
        let mut ready = [0];
        std::io::Read::read_exact(namespace.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let path = format!("/proc/{}/ns/net", namespace.0.id());
        let taps = std::thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(File::open(path).unwrap().as_fd(), network).unwrap();
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
        Self { namespace, taps: taps.join().unwrap() }
    }

    /// A guest sends a frame.
    fn send(&self, from: usize, header: &VnetHdr, frame: &[u8]) {
        let bytes = [&header.to_bytes(), frame].concat();
        match rustix::io::write(&self.taps[from].queues()[0], &bytes) {
            Ok(_) | Err(Errno::INVAL) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Calls `each` with the frames that arrive at a guest before the frame `last`.
    fn receive(&self, at: usize, last: &[u8], mut each: impl FnMut(&VnetHdr, &[u8])) {
        let mut bytes = vec![0; 70_000];
        eventually("the kernel passes the last frame", || {
            while let Ok(len) = rustix::io::read(&self.taps[at].queues()[0], &mut bytes) {
                let (header, frame) = bytes[..len].split_first_chunk().unwrap();
                if frame == last {
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
            let guest = |name: &str, number: u8| {
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
                let socket = bench.dir.path().join(format!("{name}.sock"));
                let mut guest = Guest::connect(socket, &options).unwrap();
                let pairs = guest.queue_pairs();
                eventually("all rings start", || bench.numbers(name).in_use == 1);
                (guest, pairs)
            };
            let ((_a, mut a), (_b, mut b)) = (guest("a", 1), guest("b", 2));
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
