//! Frames to other hosts: the choice of the host, and of the source port.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_engine::burst::{Burst, Frame};
use weir_engine::egress::{Emitted, Put, emit};
use weir_engine::{DropReason, Outgoing, clock, symmetric_hash};
use weir_fabric::{EgressTag, Vid};
use weir_guestmem::{Batch, Outbox, PeerAddress};
use weir_limits::{BURST_MAX, LATENCY_BUDGET_NS_DEFAULT, OVERLAY_SOURCE_PORTS};
use weir_wire::{Ethernet, Neighbour, OffloadCaps};

use crate::across::{Between, Heard, Here};
use crate::agreement;
use crate::header;
use crate::networks::{Host, Network, Networks};
use crate::port::VxlanPort;

thread_local! {
    /// The buffers for one burst's datagrams, so that a thread allocates them once.
    pub(crate) static OUTBOX: RefCell<Outbox> = RefCell::default();
}

/// One burst on its way out.
struct Sending<'o, 'm> {
    burst: &'o Burst<'m>,
    networks: &'o Networks,
    /// The bits of headers that describe the sender.
    groups: u64,
    now_ns: u64,
    /// The index of the socket that sends.
    sender: usize,
    batch: Batch<'o, 'm>,
    /// The last frame's addresses and network, and the host to which frames like it go.
    last: Option<((u64, u32), u16, Option<&'o Host>)>,
    /// The frames that were sent.
    frames: u64,
    bytes: u64,
}

impl VxlanPort {
    /// Sends all of `frames`, those of one flow in their order.
    pub(crate) fn send(&self, burst: &Burst<'_>, frames: &[Outgoing]) {
        let frames = &frames[..frames.len().min(BURST_MAX)];
        let (senders, mut used) = senders_of(burst, frames);
        let networks = &*self.networks();
        OUTBOX.with_borrow_mut(|outbox| {
            let (now_ns, batch) = (clock::now_ns(), outbox.batch());
            let (last, frames_gone, bytes) = Default::default();
            let mut sending = Sending {
                burst,
                networks,
                groups: header::of_sender(burst.set_id, burst.isolated),
                now_ns,
                sender: 0,
                batch,
                last,
                frames: frames_gone,
                bytes,
            };
            while used != 0 {
                sending.sender = used.trailing_zeros() as usize;
                used &= used - 1;
                let sender = sending.sender;
                for (outgoing, _) in frames.iter().zip(senders).filter(|(_, of)| *of == sender) {
                    self.encapsulate(*outgoing, &mut sending);
                }
                self.flush(sending.sender, &mut sending.batch);
            }
            if let Some(rx) = self.service.counters().rx.first() {
                rx.frames.add(sending.frames);
                rx.bytes.add(sending.bytes);
            }
        });
    }

    /// Puts one frame, or its segments, into the batch, for each host that gets it.
    fn encapsulate(&self, outgoing: Outgoing, sending: &mut Sending<'_, '_>) {
        let Sending { burst, networks, groups, now_ns, sender, batch, last, frames, bytes } =
            sending;
        let Some(frame) = burst.frames().get(usize::from(outgoing.frame)) else { return };
        let counters = self.service.counters();
        let number = match outgoing.tag {
            EgressTag::Tagged(number) => number.bits(),
            // The fabric always names a network for a port of networks.
            EgressTag::Untagged => return counters.dropped(DropReason::NetworkUnknown, 1),
        };
        let Some(network) = networks.network(number) else {
            return counters.dropped(DropReason::NetworkUnknown, 1);
        };
        let addresses = frame.head.addresses();
        if Neighbour::may_be(frame.head.as_slice())
            && self.suppresses((number, network), frame, *now_ns)
        {
            return;
        }
        let receiver = match *last {
            Some((same, of, receiver)) if same == addresses && of == number => receiver,
            _ => self.receiver((number, network), networks, frame, *now_ns),
        };
        *last = Some((addresses, number, receiver));
        let one;
        let mut to = match receiver {
            Some(host) => {
                host.pair.leaves(frame.arrived_ns, *now_ns, counters);
                one = [host.socket];
                &one[..]
            }
            None if network.peers.is_empty() => {
                return counters.dropped(DropReason::UnknownUnicast, 1);
            }
            None if !network.floods.pass_within_burst(*now_ns, frame.on_wire().packets) => {
                return counters.dropped(DropReason::FloodBudget, 1);
            }
            None => &network.peers[..],
        };
        let mut bits = *groups;
        let mut others = &[][..];
        match receiver {
            Some(host) => bits = host.groups(bits),
            None if bits == 0 => {}
            None => match network.peers.split_at(network.peers_with_groups) {
                ([], _) => bits = 0,
                both => (to, others) = both,
            },
        }
        let class = self.sockets.dscp.class_for(&frame.head);
        let gso = self.gso.load(Ordering::Relaxed);
        let emitted = emit(burst, frame, EgressTag::Untagged, OffloadCaps::NONE, |packet| {
            let mut put = |bits: u64, to: &[PeerAddress]| {
                let header = (network.header | bits).to_be_bytes();
                let front: [&[u8]; 2] = [&header, packet.head.as_slice()];
                if batch.push(&front, packet.body(), to, class, gso) {
                    return true;
                }
                self.flush(*sender, batch);
                batch.push(&front, packet.body(), to, class, gso)
            };
            if !put(bits, to) || !others.is_empty() && !put(0, others) {
                counters.dropped(DropReason::DeviceError, 1);
                return Put::Refused;
            }
            *frames += 1;
            *bytes += packet.len() as u64;
            Put::Done
        });
        match emitted {
            Ok(Emitted::Full) => counters.dropped(DropReason::RxRingFull, 1),
            Ok(Emitted::Done { lost }) => counters.dropped(DropReason::RxRingFull, lost.into()),
            Err(reason) => counters.dropped(reason, 1),
        }
    }

    /// The host behind which a frame's receiver is; `None` if the frame goes to all.
    fn receiver<'n>(
        &self,
        (number, network): (u16, &Network),
        networks: &'n Networks,
        frame: &Frame,
        now_ns: u64,
    ) -> Option<&'n Host> {
        let dst = Ethernet::parse(frame.head.as_slice()).ok()?.dst;
        if dst.is_multicast() {
            return None;
        }
        let vid = Vid::of_network(number)?;
        let remote = self.fdb.remote(vid, dst, self.id, clock::secs(now_ns))?;
        // The host may have left the network since the address was learned.
        networks.peer(remote).filter(|_| network.has_member(remote))
    }

    /// Sends the batch.
    fn flush(&self, sender: usize, batch: &mut Batch<'_, '_>) {
        let Some(socket) = self.sockets.senders.get(sender) else { return };
        let counters = self.service.counters();
        let lost = |datagrams: Range<usize>, error: &io::Error| {
            counters.dropped(why(error), datagrams.len() as u64);
        };
        if batch.send(socket.as_fd(), lost).refuses_gso {
            // The outgoing interface has no checksum offload.
            self.gso.store(false, Ordering::Relaxed);
        }
    }

    /// Sends other hosts the questions and answers that are due.
    pub fn exchange(&self, here: &Here, now_ns: u64) {
        let socket = self.sockets.senders.first();
        let mut wait_ns = None;
        let networks = self.networks();
        let mut of_groups = None;
        for peer in networks.peers() {
            if let (Some(word), Some(socket)) = (peer.pair.say(here, now_ns), socket) {
                OUTBOX.with_borrow_mut(|outbox| {
                    let mut batch = outbox.batch();
                    let bytes = word.to_bytes();
                    let _ = batch.push(&[&bytes], std::iter::empty(), &[peer.socket], 0, false);
                    if peer.claims_groups {
                        let word =
                            of_groups.get_or_insert_with(|| agreement::word(networks.checks()));
                        let body = word.slice(0, word.len());
                        let _ = batch.push(&[], body.into_iter(), &[peer.socket], 0, false);
                    }
                    // A host that cannot be reached gets no frames either, so the error does not matter.
                    let _ = batch.send(socket.as_fd(), |_, _| ());
                });
            }
            let share_ns = peer.pair.share_ns().unwrap_or(LATENCY_BUDGET_NS_DEFAULT);
            wait_ns = Some(wait_ns.map_or(share_ns, |ns: u64| ns.min(share_ns)));
        }
        self.wait_ns.store(wait_ns.unwrap_or(LATENCY_BUDGET_NS_DEFAULT), Ordering::Relaxed);
    }

    /// The terms between this host and others with a weir that are members of a network.
    pub fn between(&self, network: u16) -> Vec<Between> {
        let networks = self.networks();
        let members = networks.peers().filter(|host| networks.member(network, host.ip).is_some());
        members.filter_map(|host| host.pair.between(host.ip)).collect()
    }

    /// The hosts at which IDs of groups mean other groups than here, with these IDs.
    pub fn disputed(&self) -> Vec<(IpAddr, Vec<u16>)> {
        let networks = self.networks();
        let hosts = networks.peers().map(|host| (host.ip, networks.disputed(host)));
        hosts.filter(|(_, ids)| !ids.is_empty()).collect()
    }

    /// The other hosts that are members of a network.
    pub fn members(&self, network: u16) -> Vec<Heard> {
        let networks = self.networks();
        let members = networks.peers().filter(|host| networks.member(network, host.ip).is_some());
        members.map(|host| host.pair.heard(host.ip, networks.disputed(host))).collect()
    }
}

/// The socket of each frame, and the sockets that are used (bit i: socket i). A flow has one socket, so that its frames
/// stay in order, and routers and network cards outside can tell flows apart.
fn senders_of(burst: &Burst<'_>, frames: &[Outgoing]) -> ([usize; BURST_MAX], u32) {
    /// From the type to the ports of TCP or UDP over IPv4 without options: neighbouring frames with the same bytes are
    /// of one flow.
    const FLOW: std::ops::Range<usize> = 12..38;
    let (mut senders, mut used) = ([0; BURST_MAX], 0);
    let mut last: Option<(&[u8], usize)> = None;
    for (sender, outgoing) in senders.iter_mut().zip(frames) {
        let Some(frame) = burst.frames().get(usize::from(outgoing.frame)) else { continue };
        let head = frame.head.as_slice();
        *sender = match (last, head.get(FLOW)) {
            (Some((flow, sender)), Some(same)) if flow == same => sender,
            _ => symmetric_hash(head) as usize % OVERLAY_SOURCE_PORTS,
        };
        last = head.get(FLOW).map(|flow| (flow, *sender));
        used |= 1 << *sender;
    }
    (senders, used)
}

/// The reason why the kernel did not take a datagram.
fn why(error: &io::Error) -> DropReason {
    match Errno::from_io_error(error) {
        Some(Errno::MSGSIZE) => DropReason::OverPathMtu,
        Some(
            Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::NODEV
            | Errno::NXIO,
        ) => DropReason::RemoteUnreachable,
        Some(Errno::AGAIN | Errno::NOBUFS) => DropReason::RxRingFull,
        _ => DropReason::DeviceError,
    }
}
