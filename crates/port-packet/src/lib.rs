//! An interface of the host as a port of the switch, by packet sockets (packet(7)): the uplink to a network that
//! any driver serves, without a bridge.
//!
//! | file | what |
//! |---|---|
//! | `socket.rs` | [`PacketSocket`]: open and bind, one socket per queue; reading frames, with their VLAN tags |
//! | `error.rs` | [`PacketError`], with advice |
//! | `sys.rs` | bind(2), getsockname(2) and the socket options; the only file with `unsafe` |
//!
//! The port itself is [`weir_port_tap::FramePort`], as for a TAP: a burst toward the interface is one `sendmmsg`
//! straight from the sending guest's memory, a burst from it one `recvmmsg` into buffers of weir's. With
//! `PACKET_VNET_HDR` frames carry a `virtio_net_hdr`: Linux segments and fills in checksums where the interface does not.
//!
//! The host keeps using the interface: its stack receives incoming frames too, and its own frames do not reach the
//! switch (`PACKET_IGNORE_OUTGOING`). An interface for weir alone should have no addresses.
//!
//! # A frame's way
//!
//! **From the interface.** The socket is readable, its epoll entry names the queue, and a worker calls `Port::take`.
//! `FramePort` calls `FrameDevice::receive`: one `recvmmsg` for up to 32 frames, each into a buffer of weir's
//! (`virtio_net_hdr`, frame, and the tag as auxiliary data). A frame stays in its buffer until its receivers have
//! copied it, or waits there for a full one.
//!
//! **To the interface.** `FramePort::deliver` sends a burst with one `sendmmsg`: of each packet header and front from
//! weir's checked copy, the rest from the sending guest's memory. A frame that the interface's queue has no room for
//! is dropped.
//!
//! Frames that this host sends on the interface are not taken (`PACKET_IGNORE_OUTGOING`).
//!
//! # Tests
//!
//! `cargo test -p weir-port-packet`. Tests whose names begin with `root_` make a network namespace and a veth pair,
//! and pass over that without root. The queue's own tests are those of `port-tap` and of `weir-engine`.
#![deny(unsafe_code)]

// PACKET_VNET_HDR has the host's byte order, and there is no option for another.
#[cfg(target_endian = "big")]
compile_error!("packet sockets with a little-endian virtio_net_hdr take a little-endian host");

use weir_port_tap::LinkError;

mod socket;
#[allow(unsafe_code)]
mod sys;

pub use socket::{PacketInfo, PacketOptions, PacketSocket, promiscuous};

/// The reason why [`PacketSocket::open`] failed.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The interface cannot be an uplink of any kind.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The privilege for packet sockets is missing.
    #[error("not permitted to open a packet socket on interface `{name}`")]
    NotPermitted {
        /// The interface.
        name: String,
    },
}

impl PacketError {
    /// Advice to the user, if there is any.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Link(error) => error.help(),
            Self::NotPermitted { .. } => {
                Some("give weir CAP_NET_RAW (and CAP_NET_ADMIN to set MTU and link state)".into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use weir_engine::burst::Scratch;
    use weir_engine::{Engine, Port, PortCounters, Take};
    use weir_fabric::PortConfig;
    use weir_guestmem::HostBuffer;
    use weir_port_tap::{FrameDevice, FramePort, LinkError, SLOT_LEN, UplinkPort};
    use weir_testing::{carrier, ip, soon, veth};
    use weir_wire::{VnetHdr, vnet};

    use crate::socket::{self, VNET_LEN};
    use crate::{PacketError, PacketOptions, PacketSocket};

    /// A control message in the kernel's layout.
    fn control(level: i32, kind: i32, status: u32, tci: u16, tpid: u16) -> Vec<u8> {
        let mut bytes = (size_of::<usize>() + 8 + 20).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(status.to_ne_bytes());
        bytes.extend([0; 12]);
        bytes.extend(tci.to_ne_bytes());
        bytes.extend(tpid.to_ne_bytes());
        bytes.resize(size_of::<usize>() + 8 + 24, 0);
        bytes
    }

    #[test]
    fn a_tag_is_what_auxdata_says_and_nothing_else_says() {
        const VALID: u32 = libc::TP_STATUS_VLAN_VALID;
        const BOTH: u32 = VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        let (level, kind) = (libc::SOL_PACKET, libc::PACKET_AUXDATA);
        let tag = |status| socket::tag(&control(level, kind, status, 0x6014, 0x88a8));
        assert_eq!(tag(BOTH), Some([0x88, 0xa8, 0x60, 0x14]));
        assert_eq!(tag(VALID), Some([0x81, 0x00, 0x60, 0x14]));
        assert_eq!(tag(0), None);
        assert_eq!(socket::tag(&control(level, kind + 1, BOTH, 20, 0x8100)), None);
        assert_eq!(socket::tag(&control(level + 1, kind, BOTH, 20, 0x8100)), None);
        let whole = control(level, kind, BOTH, 20, 0x8100);
        for len in 0..size_of::<usize>() + 28 {
            assert_eq!(socket::tag(&whole[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_tag_goes_behind_the_addresses_and_the_checksum_moves_with_it() {
        let header = VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            gso_type: vnet::GSO_TCPV4,
            hdr_len: 54,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
            ..VnetHdr::default()
        };
        let frame: Vec<u8> = (0..60).collect();
        let buffer = HostBuffer::new(4 + VNET_LEN + frame.len());
        let slot = buffer.slice(0, buffer.len()).unwrap();
        slot.skip(4).write(&header.to_bytes()[..VNET_LEN]);
        slot.skip(4 + VNET_LEN).write(&frame);
        assert!(socket::put_back(&slot, [0x81, 0, 0, 20]));

        let mut bytes = vec![0; buffer.len()];
        slot.read(&mut bytes);
        let (front, tagged) = bytes.split_at(VNET_LEN);
        let moved = VnetHdr { csum_start: 38, hdr_len: 58, ..header };
        assert_eq!(front, &moved.to_bytes()[..VNET_LEN]);
        assert_eq!(tagged, [&frame[..12], &[0x81, 0, 0, 20], &frame[12..]].concat());

        // A frame that ends within its addresses is left alone.
        assert!(!socket::put_back(&slot.first(4 + VNET_LEN + 11), [0x81, 0, 0, 20]));
    }

    #[test]
    fn no_interface_is_opened_for_options_that_cannot_be() {
        let options = |name: &str, queues| PacketOptions { name: name.into(), queues, mtu: None };
        let error = PacketSocket::open(&options("a/b", 1)).unwrap_err();
        assert_eq!(error.to_string(), "`a/b` cannot be an interface's name: it contains '/'");
        assert!(error.help().is_some());
        let error = PacketSocket::open(&options("eth0", 9)).unwrap_err();
        assert_eq!(error.to_string(), "9 queue pairs; valid: 1 to 8");
    }

    /// Runs `body` in a network namespace of its own with a veth pair.
    fn in_new_network<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
        let why = "packet sockets and a network namespace";
        weir_testing::in_new_network(why, || {
            veth(1);
            body()
        })
    }

    fn open(queues: usize) -> PacketSocket {
        let options = PacketOptions { name: "weir0".into(), queues, mtu: None };
        let socket = PacketSocket::open(&options).unwrap();
        carrier();
        socket
    }

    struct Plugged {
        port: Arc<FramePort>,
        counters: Arc<PortCounters>,
    }

    /// Adds `weir0` to `engine` and starts it.
    fn plug(engine: &Engine, queues: usize) -> Plugged {
        let socket = open(queues);
        let counters = Arc::new(PortCounters::default());
        let (id, port) = engine
            .add_port(PortConfig::uplink(), |_, _| {
                Arc::new(FramePort::new(socket, Arc::clone(&counters)))
            })
            .unwrap();
        port.start(engine, id).unwrap();
        Plugged { port, counters }
    }

    /// A port that a test drives by hand.
    struct Rig {
        port: FramePort,
        counters: Arc<PortCounters>,
        scratch: Scratch,
    }

    /// A frame as a port takes it.
    #[derive(Debug, PartialEq, Eq)]
    struct Seen {
        vid: Option<u16>,
        needs_csum: bool,
        len: u32,
    }

    impl Rig {
        fn new(queues: usize) -> Self {
            let counters = Arc::new(PortCounters::default());
            let port = FramePort::new(open(queues), Arc::clone(&counters));
            Self { port, counters, scratch: Scratch::default() }
        }

        /// The next `count` UDP frames, and any that follow at once.
        fn take_udp_soon(&mut self, count: usize) -> Vec<Seen> {
            let mut seen = Vec::new();
            soon("frames arrive", || {
                seen.extend(self.take_udp());
                seen.len() >= count
            });
            seen
        }

        /// Every UDP frame that has come.
        fn take_udp(&mut self) -> Vec<Seen> {
            let mut seen = Vec::new();
            for queue in 0..self.port.queues() {
                self.port.take(queue, Take::New.at(0), &mut self.scratch, &mut |burst| {
                    let udp = burst.frames().iter().filter(|it| it.head.as_slice()[23] == 17);
                    seen.extend(udp.map(|frame| Seen {
                        vid: frame.tag.map(|tag| tag.vid()),
                        needs_csum: frame.offload.csum().is_some(),
                        len: frame.len,
                    }));
                });
            }
            seen
        }
    }

    #[test]
    fn root_an_interface_is_opened_as_asked_and_left_when_weir_goes() {
        in_new_network(|| {
            let options = PacketOptions { name: "weir0".into(), queues: 2, mtu: Some(1400) };
            let socket = PacketSocket::open(&options).unwrap();
            let link = ip("-d link show dev weir0");
            assert!(link.contains("mtu 1400") && link.contains(",UP"), "{link}");
            assert!(link.contains("promiscuity 2"), "one for each socket: {link}");
            assert!(link.contains(&socket.info().mac.to_string()), "{link}");
            assert_eq!(socket.info().mtu, 1400);
            drop(socket);
            // A process that another test starts holds copies of the sockets for a moment.
            soon("it is left", || ip("-d link show dev weir0").contains("promiscuity 0"));
        });
    }

    #[test]
    fn root_an_interface_that_does_not_fit_is_refused_with_help() {
        in_new_network(|| {
            let open = |name: &str, mtu| {
                PacketSocket::open(&PacketOptions { name: name.into(), queues: 1, mtu })
                    .unwrap_err()
            };
            let error = open("eth9", None);
            assert!(matches!(error, PacketError::Link(LinkError::NoInterface { .. })), "{error:?}");
            assert!(error.help().unwrap().contains("ip link"));
            assert!(matches!(open("lo", None), PacketError::Link(LinkError::NotEthernet { .. })));
            let error = open("weir0", Some(67));
            assert!(
                matches!(error, PacketError::Link(LinkError::Mtu { mtu: 67, .. })),
                "{error:?}"
            );
        });
    }

    /// A UDP frame of VLAN 20 whose checksum is still to be computed, with its `virtio_net_hdr`.
    fn tagged_udp() -> Vec<u8> {
        let header = VnetHdr {
            flags: vnet::F_NEEDS_CSUM,
            csum_start: 38,
            csum_offset: 6,
            ..VnetHdr::default()
        };
        let mut bytes = header.to_bytes()[..VNET_LEN].to_vec();
        bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 20, 8, 0]);
        bytes.extend([0x45, 0, 0, 128, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0, 9, 0, 9, 0, 108, 0, 0]);
        bytes.extend([7; 100]);
        bytes
    }

    /// The host's end of the veth pair as a packet socket. It can send and see frames for which Linux has no device.
    fn open_host() -> PacketSocket {
        PacketSocket::open(&PacketOptions { name: "host0".into(), queues: 1, mtu: None }).unwrap()
    }

    #[test]
    fn root_frames_keep_their_tag_and_their_offload() {
        in_new_network(|| {
            let mut rig = Rig::new(1);
            let host = open_host();
            let tagged = tagged_udp();
            let mut untagged = tagged.clone();
            untagged.drain(VNET_LEN + 12..VNET_LEN + 16);
            untagged[6] -= 4; // csum_start
            for bytes in [&untagged, &tagged] {
                rustix::io::write(&host.queues()[0], bytes).unwrap();
            }
            let seen = |vid| Seen { vid, needs_csum: true, len: 14 + 20 + 8 + 100 };
            assert_eq!(rig.take_udp_soon(2), [seen(None), seen(Some(20))]);
            assert_eq!(rig.counters.drops().collect::<Vec<_>>(), []);
        });
    }

    #[test]
    fn root_a_tagged_frame_leaves_the_switch_as_it_came() {
        let engine = Engine::start(1).unwrap();
        let side = || (plug(&engine, 1), open_host());
        let (Some((_here, from)), Some((_there, to))) =
            (in_new_network(side), in_new_network(side))
        else {
            return;
        };
        rustix::io::write(&from.queues()[0], &tagged_udp()).unwrap();
        let buffer = HostBuffer::new(SLOT_LEN);
        let mut got = Vec::new();
        soon("the frame arrives", || {
            let mut places = Vec::new();
            let queue = to.queues()[0].as_fd();
            let _ = to.receive(queue, &mut std::iter::once(&buffer), &mut places);
            let Some(place) = places.pop() else { return false };
            got.resize(place.len(), 0);
            buffer.slice(place.start, place.len()).unwrap().read(&mut got);
            true
        });
        assert_eq!(got, tagged_udp());
    }

    #[test]
    fn root_what_the_host_sends_by_the_interface_is_left_out() {
        for queues in [1, 2] {
            in_new_network(|| {
                let mut rig = Rig::new(queues);
                ip("address add 10.0.0.1/24 dev weir0");
                ip("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev weir0");
                let host = UdpSocket::bind("10.0.0.1:0").unwrap();
                host.send_to(&[7; 100], "10.0.0.2:9").unwrap();
                rustix::io::write(&open_host().queues()[0], &tagged_udp()).unwrap();
                let from_outside = Seen { vid: Some(20), needs_csum: true, len: 142 };
                assert_eq!(rig.take_udp_soon(1), [from_outside]);
            });
        }
    }

    #[test]
    fn root_each_frame_reaches_one_queue_and_both_queues_get_some() {
        in_new_network(|| {
            let mut rig = Rig::new(2);
            ip("address add 10.0.0.1/24 dev host0");
            ip("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev host0");
            let mut count = 0;
            for _ in 0..64 {
                let host = UdpSocket::bind("10.0.0.1:0").unwrap();
                host.send_to(&[7; 10], "10.0.0.2:9").unwrap();
                count += rig.take_udp_soon(1).len();
            }
            assert_eq!((count, rig.take_udp().len()), (64, 0));
            let per_queue = [0, 1].map(|queue| rig.counters.tx[queue].frames.get());
            assert!(per_queue.iter().all(|frames| *frames > 0), "{per_queue:?}");
        });
    }

    #[test]
    fn root_a_link_that_was_down_comes_back() {
        in_new_network(|| {
            let mut rig = Rig::new(1);
            ip("address add 10.0.0.1/24 dev host0");
            ip("link set dev weir0 down");
            assert_eq!(rig.take_udp(), []);
            ip("link set dev weir0 up");
            carrier();
            ip("neighbour replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev host0");
            let host = UdpSocket::bind("10.0.0.1:0").unwrap();
            host.send_to(&[7; 10], "10.0.0.2:9").unwrap();
            assert_eq!(rig.take_udp_soon(1).len(), 1);
            assert_eq!(rig.port.failure(), None);
            assert_eq!(rig.counters.drops().collect::<Vec<_>>(), []);
        });
    }

    #[test]
    fn root_a_deleted_interface_stops_its_port_only() {
        let engine = Engine::start(1).unwrap();
        let Some(lost) = in_new_network(|| {
            let lost = plug(&engine, 2);
            ip("link delete weir0");
            lost
        }) else {
            return;
        };
        let other = in_new_network(|| {
            let other = plug(&engine, 1);
            ip("address add 10.0.0.1/24 dev host0");
            ip("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev host0");
            let host = UdpSocket::bind("10.0.0.1:0").unwrap();
            host.send_to(&[7; 10], "10.0.0.2:9").unwrap();
            soon("the frame toward the lost interface stops its port", || {
                lost.port.failure().is_some()
            });
            // The switch continues.
            let before = other.counters.tx[0].frames.get();
            host.send_to(&[7; 10], "10.0.0.2:9").unwrap();
            soon("a frame is taken", || other.counters.tx[0].frames.get() > before);
            other
        });
        assert!(lost.port.failure().unwrap().contains("weir0"), "{:?}", lost.port);
        assert_eq!(lost.port.rx_queues(), 0);
        assert_eq!(other.unwrap().port.failure(), None);
    }

    /// Two hosts, each in its own namespace behind a veth pair, on one switch. A TCP connection between them carries
    /// all bytes, in packets far larger than the MTU.
    #[test]
    fn root_tcp_between_two_interfaces_is_whole_and_unsegmented() {
        const LEN: usize = 16 << 20;
        let engine = Engine::start(2).unwrap();
        let make = |address: &str| {
            let plugged = plug(&engine, 2);
            ip(&format!("address add {address}/24 dev host0"));
            plugged
        };
        let there =
            in_new_network(|| (make("10.0.0.1"), TcpListener::bind("10.0.0.1:80").unwrap()));
        let here =
            in_new_network(|| (make("10.0.0.2"), TcpStream::connect("10.0.0.1:80").unwrap()));
        let (Some((receiver, listener)), Some((sender, mut stream))) = (there, here) else {
            return;
        };
        let sent: Vec<u8> =
            (0..LEN as u32).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        let mut got = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stream.write_all(&sent).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            });
            listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        });
        assert!(got == sent, "{} of {LEN} bytes", got.len());

        let frames: u64 = sender.counters.tx.iter().map(|tx| tx.frames.get()).sum();
        let bytes: u64 = sender.counters.tx.iter().map(|tx| tx.bytes.get()).sum();
        assert!(bytes >= LEN as u64);
        assert!(bytes / frames > 5_000, "{bytes} bytes in {frames} frames");
        assert_eq!(receiver.port.failure(), None);
        assert_eq!(receiver.counters.drops().collect::<Vec<_>>(), []);
    }
}
