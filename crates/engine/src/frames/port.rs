//! The engine's interface to a port of any kind: a guest's virtqueues, a TAP, a Xen guest's rings. A port's queues have
//! names, and a worker finds its data for a queue without a search.

use std::sync::Arc;

use weir_fabric::{EgressTag, PortId};
use weir_groups::GroupId;
use weir_limits::{LATENCY_BUDGET_NS_DEFAULT, QUEUE_PAIRS_MAX};
use weir_policy::steering::{Receiver, Steering};
use weir_wire::Mac;

use crate::frames::burst::{Burst, Scratch};
use crate::frames::flow::symmetric_hash;

/// The reason that [`Port::fail`] gets after a panic.
pub(crate) const PANICKED: &str = "internal error (a panic in the data path; please report it)";

/// The frames that [`Port::take`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// New frames.
    New,
    /// Frames that waited for a receiver, oldest first: for this receiver, or for any.
    Parked(Option<PortId>),
}

impl Take {
    /// Asks for these frames at `now_ns`.
    #[inline]
    pub fn at(self, now_ns: u64) -> Ask {
        Ask { what: self, now_ns }
    }
}

/// A worker's request to a port.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The frames to be taken.
    pub what: Take,
    /// The time (ns). For new frames, it is the earliest time at which they can have arrived: a worker that naps does
    /// not see frames at once, and their hold counts from their arrival.
    pub now_ns: u64,
}

/// Forwards a burst of frames, once, before they are completed.
pub type Forward<'f> = &'f mut dyn FnMut(&mut Burst<'_>);

/// The result of [`Port::take`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The number of consumed chains, including dropped ones.
    pub frames: usize,
    /// True if there may be more frames now.
    pub more: bool,
    /// True if [`Port::peek_tx`] shows new frames, so the queue need not be armed at once.
    pub peek: bool,
    /// The number of frames of this queue that wait for a receiver.
    pub parked: usize,
    /// True if some waiting frames were sent and others were not tried. The frames that were not tried must be taken at
    /// once: their receiver has room, so there may be no kick.
    pub parked_more: bool,
    /// The time at which the first waiting frame has waited long enough (ns), if any frame waits.
    pub parked_until: Option<u64>,
    /// The time to call [`Port::expired`] (ns), if the call for completed frames is held and no worker will ask by
    /// then.
    pub hold_until: Option<u64>,
}

/// One frame on its way to one receiver. One word, so that one store adds it to a list.
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
pub struct Outgoing {
    /// The frame's index in the burst.
    pub frame: u16,
    /// The tag with which the frame leaves, if any.
    pub tag: EgressTag,
}

/// The result of [`Port::deliver`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// The number of frames, from the first on, that are done: delivered, or dropped and counted. The others found the
    /// queue full.
    pub frames: usize,
    /// If bit i is set, `frames[i]` is done although an earlier frame may not be: it was merged into a packet with
    /// earlier frames of its flow. Bits below `frames` do not count.
    pub ahead: u64,
    /// True if the receiver will probably offer buffers soon: frames that found the queue full may wait for it.
    pub worth_waiting: bool,
    /// True if the receiver has offered buffers in the meantime: the caller delivers again at once.
    pub again: bool,
    /// The time to call [`Port::expired`] (ns), if the policy holds the call and no worker will ask by then.
    pub hold_until: Option<u64>,
}

/// A port of the switch. Any worker may call any method; a port locks per queue.
///
/// Lock order: a transmit queue's lock, held while its burst is under way; then the state of
/// [`steering`](Self::steering); then one receive queue's lock at a time.
///
/// A captured port is wrapped in a `Tapped` (`capture`), which passes on every method, including those with defaults.
pub trait Port: Receiver + Send + Sync {
    /// Takes a burst from transmit queue `queue` and passes it to `forward` once; then completes every frame that
    /// `forward` did not park. The port takes at most [`Burst::frames_max`] new frames: with 0 it takes none, and
    /// suppresses kicks. If a port takes more, its rate compensates for that.
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken;

    /// Puts `frames` of `burst`, in order, into receive queue `queue`, publishes them with one index write, and
    /// calls the guest if the moderation policy says so.
    ///
    /// If frames found the queue full and may wait, the port asks for a kick at the next buffer.
    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered;

    /// Called when the time in [`Delivered::hold_until`] (for [`Side::Rx`]) or [`Taken::hold_until`] (for [`Side::Tx`])
    /// has come, or will have come before the worker is back from a sleep. Makes the call if it is due by `by_ns`.
    /// Otherwise, returns the time at which the worker must ask again, if it must.
    fn expired(&self, _queue: usize, _side: Side, _by_ns: u64) -> Option<u64> {
        None
    }

    /// True if transmit queue `queue` has a frame. It makes no system call and leaves kicks as they are. Only called
    /// after [`Taken::peek`].
    fn peek_tx(&self, queue: usize) -> bool {
        self.arm_tx(queue)
    }

    /// Until called with `false`, lets several workers at a time [`take`](Self::take) from transmit queue `queue`, in
    /// parallel as far as frames stay in order. Returns `false`, and changes nothing, if this brings no advantage.
    fn share_tx(&self, _queue: usize, _on: bool) -> bool {
        false
    }

    /// True if a network is behind the port: its frames come from many stations, not from one VM.
    fn is_uplink(&self) -> bool {
        false
    }

    /// True if [`deliver`](Self::deliver) copies payload from its [`Remote`](crate::frames::burst::Remote). For other
    /// ports the payload is fetched.
    fn copies_remote(&self) -> bool {
        false
    }

    /// Longest time that a frame for this port may wait for others (ns), in all: workers nap no longer.
    fn wait_ns_max(&self) -> u64 {
        LATENCY_BUDGET_NS_DEFAULT
    }

    /// Asks for a kick at the next frame in transmit queue `queue`; `true` if there is a frame already.
    fn arm_tx(&self, queue: usize) -> bool;

    /// A kick came. The first one starts a virtqueue (vhost-user: "rings start on kick").
    fn kicked(&self, _queue: usize, _side: Side) {}

    /// True if both queues of pair `queue` share one kick. Workers watch it as the kick of the transmit queue.
    fn has_one_kick(&self, _queue: usize) -> bool {
        false
    }

    /// Receive queues in use; 0 while the port receives nothing.
    fn rx_queues(&self) -> usize;

    /// The steering that selects a flow's receive queue, if there are several queues; without it, all flows go to the
    /// first queue.
    fn steering(&self) -> Option<&Steering> {
        None
    }

    /// The receiver's own hash of the frame that begins with `head`. It is used if [`steering`](Self::steering) has a
    /// table that the receiver has [set](Steering::is_given).
    fn flow_hash(&self, head: &[u8]) -> u32 {
        symmetric_hash(head)
    }

    /// The port as an overlay; `None` for any other port.
    fn overlay(&self) -> Option<&dyn Overlay> {
        None
    }

    /// The groups that the port's frames claim for their senders; `None` for a port whose frames claim nothing.
    fn claims(&self) -> Option<&dyn Claims> {
        None
    }

    /// True if a flooded frame of a guest that begins with `head` is for this port alone, where the port
    /// [serves](crate::PortSettings::served_by) the guest.
    fn keeps(&self, _head: &[u8]) -> bool {
        false
    }

    /// Stops the port with this reason after a panic in its service, so that the other ports continue. The panic is
    /// weir's fault.
    fn fail(&self, reason: &str);

    /// Notes that the port's memory kept a worker waiting for too long, the last time for `ns`. Ports without a guest's
    /// memory ignore this.
    fn blocks(&self, _ns: u64) {}
}

/// An overlay, which answers and notifies guests in place of stations on other hosts.
pub trait Overlay {
    /// The MAC address of the station for which the overlay would answer, if the overlay got the frame that begins with
    /// `head`, of network number `network`.
    fn answers(&self, head: &[u8], network: u16) -> Option<Mac>;

    /// Notifies the sender of a dropped frame, which begins with `head` and is of network number `network`, that its
    /// packets can have `mtu` bytes at most.
    fn tell_too_long(&self, head: &[u8], network: u16, mtu: u16);
}

/// Statements of other hosts about the senders of their frames.
pub trait Claims {
    /// True if the sender of a frame that the port has taken and not completed is isolated.
    fn is_isolated(&self, token: u64) -> bool;

    /// The ID in the header of a frame that the port has taken and not completed, by the frame's token; 0 without one.
    /// It is asked for the first frame of each row that a security group judges.
    fn set_id_of(&self, token: u64) -> u16;

    /// The groups that this ID stands for. It is asked only for frames that a security group judges by its rules.
    fn groups_of(&self, token: u64) -> Arc<[GroupId]>;
}

/// The side of a queue in its pair, from the guest's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The guest sends.
    Tx,
    /// The guest receives.
    Rx,
}

/// A queue that an event concerns.
#[derive(Clone, Copy, Debug, Eq, Hash)]
#[cfg_attr(not(test), derive(PartialEq))]
#[cfg_attr(
    test,
    expect(clippy::derived_hash_with_manual_eq, reason = "it is the derived one that counts")
)]
pub struct QueueRef {
    /// The port.
    pub port: PortId,
    /// The port's queue pair.
    pub queue: usize,
    /// The queue's side in its pair.
    pub side: Side,
}

/// A `T` for each pair of queues, by number: it grows when a port first occurs, and never shrinks.
#[derive(Debug)]
pub(crate) struct PerQueue<T>(Vec<T>);

impl<T> Default for PerQueue<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The index of a pair of queues in a table.
#[inline]
pub(crate) fn place(port: PortId, queue: usize) -> usize {
    port.index() * QUEUE_PAIRS_MAX + queue % QUEUE_PAIRS_MAX
}

impl<T: Default> PerQueue<T> {
    /// The entry of `queue`; `None` if neither it nor a later queue was ever used.
    #[inline]
    pub(crate) fn get(&self, queue: QueueRef) -> Option<&T> {
        self.0.get(place(queue.port, queue.queue))
    }

    /// The entry of `queue`, which is created if it does not exist.
    #[inline]
    pub(crate) fn at(&mut self, queue: QueueRef) -> &mut T {
        let place = place(queue.port, queue.queue);
        if place >= self.0.len() {
            self.grow(place);
        }
        &mut self.0[place]
    }

    #[cold]
    fn grow(&mut self, place: usize) {
        self.0.resize_with(place + 1, T::default);
    }
}
