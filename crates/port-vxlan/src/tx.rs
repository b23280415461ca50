//! One queue's frames from other hosts. They are received into buffers, and stay there until their receivers have
//! copied them. A message of the kernel is one datagram, or several of one sender (UDP GRO).

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::Guard;
use weir_engine::DropReason;
use weir_engine::burst::{Burst, Pieces, TakenChain};
use weir_guestmem::{Arrival, HostBuffer, Slice, receive_datagrams};
use weir_limits::{
    BURST_MAX, DATAGRAMS_RECEIVED_MAX, FRAME_LEN_MIN, OVERLAY_BUFFERS, OVERLAY_ERRORS_MAX,
    OVERLAY_PARKED_MAX,
};
use weir_port_tap::{DeviceFrames, Service, Uncalled};
use weir_wire::layers::IPV4_HEADER_LEN_MIN;
use weir_wire::traffic_class::ecn;
use weir_wire::{VnetHdr, ethertype, leave_tunnel};

use crate::across::{self, Word};
use crate::header;
use crate::networks::{Networks, Stranger};

/// Bytes of a buffer: no UDP message is longer.
const BUFFER_LEN: usize = 1 << 16;
/// The addresses come before a frame's type.
const ETHERTYPE_AT: usize = 12;

/// A queue's buffers, each made at its first use.
pub(crate) struct Buffers {
    buffers: Box<[OnceLock<HostBuffer>]>,
    /// The sender of the message in each buffer.
    remotes: Box<[AtomicU32]>,
    /// A frame from outside has no `virtio_net_hdr`: this header precedes each.
    plain: HostBuffer,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self {
            buffers: (0..OVERLAY_BUFFERS).map(|_| OnceLock::new()).collect(),
            remotes: (0..OVERLAY_BUFFERS).map(|_| AtomicU32::new(0)).collect(),
            plain: HostBuffer::new(VnetHdr::LEN),
        }
    }

    fn all_of(&self, buffer: u8) -> Option<Slice<'_>> {
        let buffer = self.buffers.get(usize::from(buffer))?;
        buffer.get_or_init(|| HostBuffer::new(BUFFER_LEN)).slice(0, BUFFER_LEN)
    }

    /// The header before a frame that is taken and not settled. A header that describes its sender
    /// comes from a host that may do so.
    pub(crate) fn header(&self, token: Token) -> Option<[u8; header::LEN]> {
        let header_at = usize::from(token.at).checked_sub(header::LEN)?;
        self.all_of(token.buffer)?.skip(header_at).read_array()
    }

    /// The ID of the sender's groups in that header; 0 without one.
    pub(crate) fn set_id(&self, token: Token) -> u16 {
        self.header(token).map_or(0, header::set_id)
    }

    /// The sender of a frame that is taken and not settled.
    pub(crate) fn remote(&self, token: Token) -> u32 {
        self.remotes.get(usize::from(token.buffer)).map_or(0, |it| it.load(Ordering::Relaxed))
    }
}

/// The place of a frame, and its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) queue: u8,
    buffer: u8,
    pub(crate) network: u16,
    at: u16,
    len: u16,
}

impl Token {
    fn pack(self) -> u64 {
        let Self { queue, buffer, network, at, len } = self;
        u64::from(queue) << 56
            | u64::from(buffer) << 48
            | u64::from(network) << 32
            | u64::from(at) << 16
            | u64::from(len)
    }

    /// Unpacks a token that [`Self::pack`] has made.
    pub(crate) fn unpack(token: u64) -> Self {
        Self {
            queue: (token >> 56) as u8,
            buffer: (token >> 48) as u8,
            network: (token >> 32) as u16,
            at: (token >> 16) as u16,
            len: token as u16,
        }
    }
}

/// A message with datagrams that were not taken yet.
struct Waiting {
    buffer: u8,
    at: usize,
    end: usize,
    segment_len: usize,
    from: Option<IpAddr>,
    class: u8,
}

/// A datagram: its place, its sender, and the traffic class of the packet that brought it.
struct Datagram {
    buffer: u8,
    at: usize,
    len: usize,
    from: Option<IpAddr>,
    class: u8,
}

/// The use of the buffers.
pub(crate) struct Slots {
    /// The last buffer freed is used first: its memory is still in the CPU's cache.
    free: Vec<u8>,
    /// Frames in each buffer that are not settled, and one while it [waits](Waiting).
    users: Box<[u16]>,
    waiting: VecDeque<Waiting>,
    arrivals: Vec<Arrival>,
    /// The socket was empty. Its descriptor is edge-triggered: from then on, and only then, the next message gives a
    /// kick.
    drained: bool,
    /// Errors since the last message.
    errors: u32,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            free: (0..OVERLAY_BUFFERS as u8).rev().collect(),
            users: vec![0; OVERLAY_BUFFERS].into(),
            waiting: VecDeque::with_capacity(DATAGRAMS_RECEIVED_MAX),
            arrivals: Vec::with_capacity(DATAGRAMS_RECEIVED_MAX),
            drained: false,
            errors: 0,
        }
    }

    fn hold(&mut self, buffer: u8) {
        if let Some(users) = self.users.get_mut(usize::from(buffer)) {
            *users += 1;
        }
    }

    fn release(&mut self, buffer: u8) {
        if let Some(users) = self.users.get_mut(usize::from(buffer)) {
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.free.push(buffer);
            }
        }
    }

    fn next(&mut self) -> Option<Datagram> {
        let Waiting { buffer, at, end, segment_len, from, class } = self.waiting.front_mut()?;
        let len = (*segment_len).min(*end - *at);
        let datagram = Datagram { buffer: *buffer, at: *at, len, from: *from, class: *class };
        *at += len;
        if at == end {
            self.waiting.pop_front();
        }
        Some(datagram)
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }
}

/// The places of a transmit queue.
pub(crate) type Places = Uncalled<Slots>;

/// A queue of an overlay, and the buffers for its frames.
pub(crate) struct SocketQueue<'p> {
    pub(crate) service: &'p Service,
    /// The index of the queue.
    pub(crate) index: usize,
    pub(crate) socket: BorrowedFd<'p>,
    pub(crate) buffers: &'p Buffers,
    pub(crate) networks: Guard<Arc<Networks>>,
}

impl SocketQueue<'_> {
    /// Receives messages; `false` if there are none, or no buffer is free.
    fn receive(&self, slots: &mut Slots) -> bool {
        let Slots { free, arrivals, .. } = slots;
        if free.is_empty() {
            return false;
        }
        let into = free.iter().rev().map_while(|&buffer| self.buffers.all_of(buffer));
        let asked = match receive_datagrams(self.socket, into, arrivals) {
            Ok(asked) => asked,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                slots.drained = true;
                return false;
            }
            Err(error) => {
                self.service.counters().dropped(DropReason::DeviceError, 1);
                slots.errors += 1;
                if slots.errors >= OVERLAY_ERRORS_MAX {
                    self.service.fail(&format!("its socket receives nothing: {error}"));
                }
                return false;
            }
        };
        slots.errors = 0;
        slots.drained = slots.arrivals.len() < asked;
        for index in 0..slots.arrivals.len() {
            let Arrival { len, from, segment_len, class, truncated } = slots.arrivals[index];
            let Some(buffer) = slots.free.pop() else { break };
            slots.hold(buffer);
            // A truncated message is judged as an empty one.
            let end = if truncated { 0 } else { len.min(BUFFER_LEN) };
            slots.waiting.push_back(Waiting { buffer, at: 0, end, segment_len, from, class });
        }
        true
    }

    /// Judges a datagram: finds its frame, the frame's network, and the host that sent it.
    fn open(
        &self,
        place: Slice<'_>,
        from: Option<IpAddr>,
        class: u8,
    ) -> Result<(u16, u32), DropReason> {
        let header = place.read_array().ok_or(DropReason::BadEncapsulation)?;
        let vni = match header::vni(header) {
            Some(vni) => vni,
            None => self.vni_with_groups(header, from).ok_or(DropReason::BadEncapsulation)?,
        };
        let origin = self.networks.origin(vni, from).map_err(|stranger| match stranger {
            Stranger::Network => DropReason::NetworkUnknown,
            Stranger::Remote => DropReason::RemoteUnknown,
        })?;
        let frame = place.skip(header::LEN);
        if frame.len() < FRAME_LEN_MIN as usize {
            return Err(DropReason::FrameTooShort);
        }
        // "decapsulated VXLAN frames with the inner VLAN tag SHOULD be discarded" (RFC 7348 §6.1):
        // the tag would be where weir has the network.
        let kind = frame.skip(ETHERTYPE_AT).read_array().map_or(0, u16::from_be_bytes);
        if matches!(kind, ethertype::VLAN | ethertype::QINQ) {
            return Err(DropReason::BadEncapsulation);
        }
        if class & ecn::MASK != ecn::NOT_ECT {
            mark(frame, class)?;
        }
        Ok(origin)
    }

    /// The network that a header with an extension names, if the sender may have it. Nobody but a peer with `gbp`
    /// claims groups: Linux too drops such frames of others.
    #[cold]
    fn vni_with_groups(&self, header: [u8; header::LEN], from: Option<IpAddr>) -> Option<u32> {
        let host = self.networks.peer_at(from?)?;
        header::vni_with_groups(header).filter(|_| host.claims_groups)
    }

    /// Handles a word of a member; `false` if the datagram is no word.
    #[cold]
    fn hear(&self, place: Option<Slice<'_>>, from: Option<IpAddr>, now_ns: u64) -> bool {
        let peer = from.and_then(|ip| self.networks.peer_at(ip));
        let (Some(place), Some(peer)) = (place, peer) else { return false };
        let word = Some(place).filter(|place| place.len() == across::LEN);
        match word.and_then(|place| Word::parse(place.read_array()?)) {
            Some(word) => peer.pair.hear(word, now_ns),
            None => return peer.claims_groups && peer.said.hear(place),
        }
        true
    }

    /// Adds the frame at a place to the burst, or counts the reason why it is not added.
    fn add<'m>(&'m self, burst: &mut Burst<'m>, token: Token, arrived_ns: u64) {
        let place = self.buffers.all_of(token.buffer);
        let frame = place.map(|place| place.skip(token.at.into()).first(token.len.into()));
        let first = burst.pieces.len() as u32;
        burst.pieces.extend(self.buffers.plain.slice(0, VnetHdr::LEN));
        burst.pieces.extend(frame);
        let len = (VnetHdr::LEN + usize::from(token.len)) as u32;
        let pieces = Pieces::Among(first, burst.pieces.len() as u32);
        let chain = TakenChain { token: token.pack(), len, pieces };
        burst.chains.push(chain);
        if burst.add_of_device(chain, VnetHdr::LEN, arrived_ns, self.service.counters()) {
            burst.name_network(token.network);
        }
    }
}

/// Transfers the congestion mark of the underlay to the frame (RFC 6040).
fn mark(frame: Slice<'_>, outer: u8) -> Result<(), DropReason> {
    /// The bytes that are read and changed. A tag is not among them.
    const FRONT_LEN: usize = ETHERTYPE_AT + 2 + IPV4_HEADER_LEN_MIN as usize;
    let mut front = [0; FRONT_LEN];
    let read = frame.read(&mut front);
    let front = &mut front[..read];
    if leave_tunnel(front, outer).map_err(|_| DropReason::MarkedNotEct)? {
        frame.write(front);
    }
    Ok(())
}

impl DeviceFrames for SocketQueue<'_> {
    type Places = Slots;

    const PARKED_MAX: usize = OVERLAY_PARKED_MAX;

    fn queue(&self) -> (&Service, usize) {
        (self.service, self.index)
    }

    fn read<'m>(&'m self, slots: &mut Slots, now_ns: u64, burst: &mut Burst<'m>) -> usize {
        let mut datagrams = 0;
        slots.drained = false;
        while datagrams < BURST_MAX {
            if slots.waiting.is_empty() && (slots.drained || !self.receive(slots)) {
                break;
            }
            let Some(Datagram { buffer, at, len, from, class }) = slots.next() else { continue };
            datagrams += 1;
            // A used-up message is freed with its last frame.
            let is_last = slots.waiting.front().is_none_or(|waiting| waiting.buffer != buffer);
            let place = self.buffers.all_of(buffer).map(|all| all.skip(at).first(len));
            match place
                .ok_or(DropReason::DeviceError)
                .and_then(|place| self.open(place, from, class))
            {
                Err(DropReason::BadEncapsulation) if self.hear(place, from, now_ns) => {}
                Ok((network, remote)) => {
                    if let Some(sender) = self.buffers.remotes.get(usize::from(buffer)) {
                        sender.store(remote, Ordering::Relaxed);
                    }
                    slots.hold(buffer);
                    // Both are below 64 KiB.
                    let (at, len) = ((at + header::LEN) as u16, (len - header::LEN) as u16);
                    let waited_ns = self.networks.peer(remote).map_or(0, |it| it.pair.waited_ns());
                    let arrived_ns = now_ns.saturating_sub(waited_ns);
                    let queue = self.index as u8; // there are fewer
                    self.add(burst, Token { queue, buffer, network, at, len }, arrived_ns);
                }
                Err(reason) => self.service.counters().dropped(reason, 1),
            }
            if is_last {
                slots.release(buffer);
            }
        }
        datagrams
    }

    fn read_again<'m>(&'m self, _: &mut Slots, token: u64, arrived_ns: u64, burst: &mut Burst<'m>) {
        self.add(burst, Token::unpack(token), arrived_ns);
    }

    fn free(&self, slots: &mut Slots, tokens: impl Iterator<Item = u64>) {
        tokens.for_each(|token| slots.release(Token::unpack(token).buffer));
    }

    fn has_more(&self, slots: &Slots) -> bool {
        !slots.drained || !slots.waiting.is_empty()
    }
}
