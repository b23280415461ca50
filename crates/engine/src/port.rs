//! The engine's interface to a port of any kind: a guest's virtqueues, a TAP, a Xen guest's rings.

use weir_fabric::{EgressTag, PortId};
use weir_limits::LATENCY_BUDGET_NS_DEFAULT;
use weir_policy::steering::{Receiver, Steering};
use weir_wire::Mac;

use crate::burst::{Burst, Scratch};
use crate::flow::symmetric_hash;

/// What [`Port::fail`] is told.
pub(crate) const PANICKED: &str = "internal error (a panic in the data path; please report it)";

/// Which frames [`Port::take`] brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// New ones.
    New,
    /// Those that waited for a receiver, oldest first: for this one, or whomever they wait for.
    Parked(Option<PortId>),
}

impl Take {
    /// Asks for these frames at `now_ns`.
    #[inline]
    pub fn at(self, now_ns: u64) -> Ask {
        Ask { what: self, now_ns }
    }
}

/// What a worker asks a port for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Which frames.
    pub what: Take,
    /// The time (ns) or, for new frames, the earliest at which they may have come: a worker that naps does not see
    /// them at once, and their hold is counted from then.
    pub now_ns: u64,
}

/// What is done with a burst of frames, once, before they are completed.
pub type Forward<'f> = &'f mut dyn FnMut(&mut Burst<'_>);

/// What [`Port::take`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Chains consumed, dropped ones included.
    pub frames: usize,
    /// There may be more now.
    pub more: bool,
    /// [`Port::peek_tx`] sees when there is more: the queue needs not be armed at once.
    pub peek: bool,
    /// Frames of this queue that wait for a receiver.
    pub parked: usize,
    /// Some waiting frames went, others are untried: take them at once. Their receiver has room, so maybe no kick
    /// comes.
    pub parked_more: bool,
    /// When the first of them has waited long enough (ns), if any waits.
    pub parked_until: Option<u64>,
    /// When to ask [`Port::expired`] (ns), if the call for completed frames is held and no worker will ask by then.
    pub hold_until: Option<u64>,
}

/// One frame on its way to one receiver.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Index in the burst.
    pub frame: u16,
    /// Whether it leaves with a tag.
    pub tag: EgressTag,
}

/// What [`Port::deliver`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Frames dealt with, from the first on: delivered, or dropped and counted. The others found the queue full.
    pub frames: usize,
    /// Bit i: `frames[i]` is dealt with although an earlier one may not be: it went ahead in a packet merged with
    /// earlier ones of its flow. Bits below `frames` do not count.
    pub ahead: u64,
    /// The receiver is expected to offer buffers soon: frames that found it full may wait for it.
    pub worth_waiting: bool,
    /// It has offered some while this was found out: try again at once.
    pub again: bool,
    /// When to ask [`Port::expired`] (ns), if the policy holds the call and no worker will ask by then.
    pub hold_until: Option<u64>,
}

/// A port of the switch. Any worker may call any method; a port locks per queue.
///
/// Lock order: a transmit queue's lock, held while its burst is under way; then the state of
/// [`steering`](Self::steering); then one receive queue's lock at a time.
///
/// A captured port stands behind `Tapped` (`capture`), which passes on every method, those with
/// defaults too.
pub trait Port: Receiver + Send + Sync {
    /// Takes a burst from transmit queue `queue` and hands it to `forward` once; then completes
    /// every frame that `forward` did not park. New frames are at most [`Burst::frames_max`]: with 0,
    /// nothing is taken and kicks go off. What a port takes beyond, its rate makes up for.
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken;

    /// Puts `frames` of `burst`, in order, into receive queue `queue`, publishes them with one index write, and
    /// calls the guest if the moderation policy says so.
    ///
    /// Where frames found the queue full and may wait, a kick is asked for at the next buffer.
    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered;

    /// The time that [`Delivered::hold_until`] (for [`Side::Rx`]) or [`Taken::hold_until`] (for
    /// [`Side::Tx`]) named has come, or will have come before the worker is back from a sleep: gives the
    /// call if it is due until `by_ns`, and says when to ask again, if the worker is to do that.
    fn expired(&self, _queue: usize, _side: Side, _by_ns: u64) -> Option<u64> {
        None
    }

    /// Whether transmit queue `queue` has a frame, without a system call or a change of kicks. Asked only after
    /// [`Taken::peek`].
    fn peek_tx(&self, queue: usize) -> bool {
        self.arm_tx(queue)
    }

    /// Until called with `false`, lets several workers at a time [`take`](Self::take) from transmit queue `queue`,
    /// in parallel as far as frames stay in order. Returns `false`, without any change, where this brings nothing.
    fn share_tx(&self, _queue: usize, _on: bool) -> bool {
        false
    }

    /// Whether a network is behind it, and what it sends is from many, not one VM.
    fn is_uplink(&self) -> bool {
        false
    }

    /// Whether [`deliver`](Self::deliver) copies payload from its [`Remote`](crate::remote::Remote). Other ports
    /// get it fetched.
    fn copies_remote(&self) -> bool {
        false
    }

    /// How long a frame for this port may wait for others (ns), in all: workers nap no longer.
    fn wait_ns_max(&self) -> u64 {
        LATENCY_BUDGET_NS_DEFAULT
    }

    /// Asks for a kick at the next frame in transmit queue `queue`; `true` if one is there already.
    fn arm_tx(&self, queue: usize) -> bool;

    /// A kick came. The first one starts a virtqueue (vhost-user: "rings start on kick").
    fn kicked(&self, _queue: usize, _side: Side) {}

    /// Whether both queues of pair `queue` have one kick, which is watched as that of the transmit queue.
    fn has_one_kick(&self, _queue: usize) -> bool {
        false
    }

    /// Receive queues in use; 0 while the port receives nothing.
    fn rx_queues(&self) -> usize;

    /// Which receive queue a flow goes to, where there are several; without, all go to the first.
    fn steering(&self) -> Option<&Steering> {
        None
    }

    /// The receiver's own hash of the frame that begins with `head`, where [`steering`](Self::steering) has a table
    /// that it [gave](Steering::is_given).
    fn flow_hash(&self, head: &[u8]) -> u32 {
        symmetric_hash(head)
    }

    /// Which station's address it would answer with in the station's place, if it got the frame that begins with
    /// `head`, with this tag.
    fn answers(&self, _head: &[u8], _tag: EgressTag) -> Option<Mac> {
        None
    }

    /// A frame that begins with `head`, of the network of that number, was too long, and was dropped: tells its sender that
    /// packets have `mtu` bytes at most. `false` from a port that tells nobody anything.
    fn tell_too_long(&self, _head: &[u8], _network: u16, _mtu: u16) -> bool {
        false
    }

    /// Serving this port panicked, weir's fault: it must stop, with this reason, so that the other ports go on.
    fn fail(&self, reason: &str);

    /// Its memory kept a worker waiting for too long, the last time for `ns`. Ports without a guest's memory do
    /// nothing.
    fn blocks(&self, _ns: u64) {}
}

/// Which of a pair of queues, from the guest's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The guest sends.
    Tx,
    /// The guest receives.
    Rx,
}
