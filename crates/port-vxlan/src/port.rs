//! An overlay, as the engine sees it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::{ArcSwap, Guard};
use weir_engine::burst::{Burst, Scratch};
use weir_engine::guest::TransmitCalls;
use weir_engine::queue::TransmitQueue;
use weir_engine::stats::Counter;
use weir_engine::{
    Ask, Claims, Delivered, Forward, Outgoing, Overlay, Port, PortCounters, Side, Take, Taken,
    clock,
};
use weir_fabric::{Fdb, PortId, Vid};
use weir_groups::GroupId;
use weir_limits::{BURST_MAX, LATENCY_BUDGET_NS_DEFAULT, OVERLAY_ANSWERS_MAX};
use weir_policy::steering::Receiver;
use weir_port_tap::{DeviceFrames, FromDevice, Service, Uncalled, UplinkPort};
use weir_wire::{Ethernet, Head, Mac, Tci, TooBig};

use crate::header;
use crate::networks::Networks;
use crate::sightings::Suppress;
use crate::sockets::OverlaySockets;
use crate::tx::{Buffers, Places, Slots, SocketQueue, Token};

impl AnswerCounters {
    /// Every counter with its name.
    pub fn all(&self) -> [(&'static str, u64); 4] {
        let Self { arp_answered, nd_answered, too_big_answered, sightings_lost } = self;
        [
            ("arp_answered", arp_answered.get()),
            ("nd_answered", nd_answered.get()),
            ("too_big_answered", too_big_answered.get()),
            ("sightings_lost", sightings_lost.get()),
        ]
    }
}

/// An overlay as a port of the switch.
pub struct VxlanPort {
    pub(crate) service: Service,
    pub(crate) id: PortId,
    pub(crate) sockets: OverlaySockets,
    networks: ArcSwap<Networks>,
    /// The lock is held by a thread that changes the networks.
    changing: Mutex<()>,
    /// The forwarding table, with the places of addresses.
    pub(crate) fdb: Arc<Fdb>,
    /// One queue for each of the sockets that receive. The kernel takes datagrams of several threads; only receiving
    /// needs a lock, for the buffers.
    tx: Vec<(TransmitQueue<Places>, Buffers)>,
    /// Several datagrams for one host may go as one message.
    pub(crate) gso: AtomicBool,
    /// The time that frames for other hosts may wait here (ns).
    pub(crate) wait_ns: AtomicU64,
    /// weir's own answers, and their queue: the one after those of the sockets.
    pub(crate) answers: Answers,
    answering: TransmitQueue<Uncalled<()>>,
    pub(crate) suppress: Suppress,
    /// Counts of the answers.
    pub counters: AnswerCounters,
}

/// Counts of the answers that an overlay has given in place of others, and of claims that it passed over.
#[derive(Debug, Default)]
pub struct AnswerCounters {
    /// ARP requests for a station behind another host.
    pub arp_answered: Counter,
    /// Neighbour solicitations for a station behind another host.
    pub nd_answered: Counter,
    /// Packets that were too long, whose sender was notified.
    pub too_big_answered: Counter,
    /// Claims of addresses that were passed over, because there were too many.
    pub sightings_lost: Counter,
}

impl VxlanPort {
    /// A port called `name`, with the number `id` in the switch of `fdb`, and these counters.
    pub fn new(
        name: String,
        id: PortId,
        sockets: OverlaySockets,
        networks: Networks,
        fdb: Arc<Fdb>,
        counters: Arc<PortCounters>,
    ) -> Self {
        let queue = |_| {
            let places = Uncalled(Slots::new());
            (TransmitQueue::new(places, TransmitCalls::default()), Buffers::new())
        };
        Self {
            service: Service::new(name, counters),
            id,
            tx: sockets.queues.iter().map(queue).collect(),
            sockets,
            networks: ArcSwap::from_pointee(networks),
            changing: Mutex::default(),
            fdb,
            gso: AtomicBool::new(true),
            wait_ns: AtomicU64::new(LATENCY_BUDGET_NS_DEFAULT),
            answers: Answers::default(),
            answering: TransmitQueue::new(Uncalled(()), TransmitCalls::default()),
            suppress: Suppress::default(),
            counters: AnswerCounters::default(),
        }
    }

    /// The present networks, for one burst.
    pub fn networks(&self) -> Guard<Arc<Networks>> {
        self.networks.load()
    }

    /// Changes the networks. Bursts under way continue with the earlier ones.
    pub fn change_networks(&self, change: impl FnOnce(&mut Networks)) {
        let _changing = self.changing.lock().unwrap_or_else(|e| e.into_inner());
        let mut networks = Networks::clone(&self.networks.load());
        change(&mut networks);
        self.networks.store(Arc::new(networks));
    }

    fn transmit(
        &self,
        index: usize,
    ) -> Option<(&TransmitQueue<Places>, FromDevice<SocketQueue<'_>>)> {
        let (tx, buffers) = self.tx.get(index)?;
        let socket = self.sockets.queues.get(index)?.as_fd();
        let (service, networks) = (&self.service, self.networks());
        Some((tx, FromDevice(SocketQueue { service, index, socket, buffers, networks })))
    }

    /// The queue of weir's own answers, if `index` is its number.
    fn answer_queue(&self, index: usize) -> Option<FromDevice<AnswerQueue<'_>>> {
        let (service, answers) = (&self.service, &self.answers);
        (index == self.sockets.queues.len()).then_some(FromDevice(AnswerQueue {
            service,
            index,
            answers,
        }))
    }

    /// Notes the hosts behind which the senders of forwarded frames are, if the switch has learned the senders behind
    /// this port.
    fn note_remotes(&self, burst: &Burst<'_>, buffers: &Buffers) {
        let mut last = None;
        for frame in burst.frames() {
            let token = Token::unpack(frame.token);
            let remote = buffers.remote(token);
            let this = Some((frame.head.addresses(), token.network, remote));
            if this == last {
                continue;
            }
            last = this;
            if let (Some(vid), Ok(Ethernet { src, .. })) =
                (Vid::of_network(token.network), Ethernet::parse(frame.head.as_slice()))
                && !self.fdb.is_told(vid, self.id)
            {
                self.fdb.set_remote(vid, src, self.id, remote);
            }
        }
    }

    /// Buffers of a transmit queue that hold no frame.
    #[cfg(test)]
    pub(crate) fn free_buffers(&self, queue: usize) -> usize {
        self.tx[queue].0.lock().queue.0.free()
    }
}

impl Port for VxlanPort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        if let Some(source) = self.answer_queue(queue) {
            return self.take_from((&self.answering, &source), ask, scratch, forward);
        }
        let Some((tx, source)) = self.transmit(queue) else { return Taken::default() };
        let mut forward_and_note = |burst: &mut Burst<'_>| {
            forward(burst);
            if ask.what == Take::New {
                self.note_remotes(burst, source.0.buffers);
                self.overhear(burst);
            }
        };
        self.take_from((tx, &source), ask, scratch, &mut forward_and_note)
    }

    fn deliver(&self, _queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        self.send(burst, frames);
        // A datagram that the kernel does not take is lost, as on a wire: the kernel does not tell when it has room
        // again.
        Delivered { frames: frames.len(), ..Delivered::default() }
    }

    fn arm_tx(&self, queue: usize) -> bool {
        if let Some(source) = self.answer_queue(queue) {
            return self.arm(&self.answering, &source);
        }
        // Receiving everything arms the queue.
        self.transmit(queue).is_some_and(|(tx, source)| self.arm(tx, &source))
    }

    fn share_tx(&self, queue: usize, on: bool) -> bool {
        self.tx.get(queue).is_some_and(|(tx, _)| {
            tx.set_side_by_side(on);
            true
        })
    }

    fn is_uplink(&self) -> bool {
        true
    }

    fn wait_ns_max(&self) -> u64 {
        self.wait_ns.load(Ordering::Relaxed)
    }

    fn kicked(&self, queue: usize, side: Side) {
        self.service.kicked(queue, side);
    }

    /// Any worker sends by any socket, so there is one queue for frames.
    fn rx_queues(&self) -> usize {
        usize::from(!self.service.has_failed())
    }

    fn overlay(&self) -> Option<&dyn Overlay> {
        Some(self)
    }

    fn claims(&self) -> Option<&dyn Claims> {
        self.networks().has_claims().then_some(self as &dyn Claims)
    }

    fn fail(&self, reason: &str) {
        self.service.fail(reason);
    }
}

impl Overlay for VxlanPort {
    fn answers(&self, head: &[u8], network: u16) -> Option<Mac> {
        self.would_answer(head, network)
    }

    fn tell_too_long(&self, head: &[u8], network: u16, mtu: u16) {
        self.tell_mtu(head, network, mtu);
    }
}

impl Claims for VxlanPort {
    fn is_isolated(&self, token: u64) -> bool {
        let token = Token::unpack(token);
        let buffers = self.tx.get(usize::from(token.queue));
        buffers.and_then(|(_, buffers)| buffers.header(token)).is_some_and(header::is_isolated)
    }

    fn set_id_of(&self, token: u64) -> u16 {
        let token = Token::unpack(token);
        let buffers = self.tx.get(usize::from(token.queue));
        buffers.map_or(0, |(_, buffers)| buffers.set_id(token))
    }

    fn groups_of(&self, token: u64) -> Arc<[GroupId]> {
        let token = Token::unpack(token);
        let buffers = self.tx.get(usize::from(token.queue)).map(|(_, buffers)| buffers);
        let (set_id, remote) = buffers.map_or_else(Default::default, |buffers| {
            (buffers.set_id(token), buffers.remote(token))
        });
        self.networks().groups_of(set_id, remote)
    }
}

/// A call returns when the kernel has the datagrams.
impl Receiver for VxlanPort {}

impl UplinkPort for VxlanPort {
    fn service(&self) -> &Service {
        &self.service
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.queues.iter().chain([&self.sockets.bell]).map(AsFd::as_fd).collect()
    }

    /// The number of the sockets' queues.
    fn queues(&self) -> usize {
        self.sockets.queues.len()
    }
}

impl std::fmt::Debug for VxlanPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VxlanPort")
            .field("local", &self.sockets.local)
            .field("failure", &self.failure())
            .finish()
    }
}

/// Answers on their way: weir's own frames to guests, in a queue of the port's beside its sockets. A worker takes them
/// as it takes frames from other hosts. So an answer goes the way of any frame: into its network and no other, through
/// the receiver's filters and rates, and never to another host.
#[derive(Default)]
pub(crate) struct Answers {
    waiting: Mutex<VecDeque<(u16, Head)>>,
}

impl Answers {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<(u16, Head)>> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Queues a frame for a network, and rings the bell if it is the first; `false` if too many wait.
    pub(crate) fn push(&self, network: u16, frame: &[u8], bell: BorrowedFd<'_>) -> bool {
        let mut waiting = self.waiting();
        if waiting.len() >= OVERLAY_ANSWERS_MAX {
            return false;
        }
        let is_first = waiting.is_empty();
        waiting.push_back((network, Head::copy_of(frame)));
        drop(waiting);
        if is_first {
            // Each write is an event, and it takes centuries to fill the counter.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
        true
    }
}

/// The source address of a message that a packet is too long, if the station beyond the overlay is not known. It is
/// locally administered, and belongs to no station.
const NOBODY: Mac = Mac([0x02, b'w', b'e', b'i', b'r', 0]);

impl VxlanPort {
    /// Tells the sender of the frame that begins with `head` that a packet may have `mtu` bytes.
    pub(crate) fn tell_mtu(&self, head: &[u8], number: u16, mtu: u16) {
        let now_ns = clock::now_ns();
        let networks = self.networks();
        let (Some(network), Some(vid), Ok(Ethernet { dst, .. })) =
            (networks.network(number), Vid::of_network(number), Ethernet::parse(head))
        else {
            return;
        };
        let is_away = self.fdb.lookup(vid, dst, clock::secs(now_ns)) == Some(self.id);
        let from = if is_away { dst } else { NOBODY };
        if let Some(told) = TooBig::to(head, mtu, from)
            && self.answer((number, network), told.as_slice(), now_ns)
        {
            self.counters.too_big_answered.add(1);
        }
    }
}

/// The queue from which the answers are taken. It parks no answer: without room at the receiver, an answer is lost.
struct AnswerQueue<'p> {
    pub(crate) service: &'p Service,
    pub(crate) index: usize,
    pub(crate) answers: &'p Answers,
}

impl DeviceFrames for AnswerQueue<'_> {
    type Places = ();

    const FROM_DEVICE: bool = false;
    const PARKED_MAX: usize = 0;

    fn queue(&self) -> (&Service, usize) {
        (self.service, self.index)
    }

    fn read<'m>(&'m self, (): &mut (), now_ns: u64, burst: &mut Burst<'m>) -> usize {
        let mut waiting = self.answers.waiting();
        let count = waiting.len().min(BURST_MAX);
        for (network, frame) in waiting.drain(..count) {
            // The network's number takes the place of a tag, as in the port's other frames.
            burst.add_own(frame.as_slice(), Some(Tci::from_bits(network)), now_ns);
        }
        count
    }

    fn read_again<'m>(&'m self, (): &mut (), _: u64, _: u64, _: &mut Burst<'m>) {}

    fn free(&self, (): &mut (), _: impl Iterator<Item = u64>) {}

    fn has_more(&self, (): &()) -> bool {
        !self.answers.waiting().is_empty()
    }
}
