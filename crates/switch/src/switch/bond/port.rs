//! The port of a bond. It sends by its uplinks. Each uplink takes the frames that it receives, and they come in by the
//! bond.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use weir_engine::burst::{Burst, Scratch};
use weir_engine::{Ask, Delivered, DropReason, Forward, Outgoing, Port, PortCounters, Side, Taken};
use weir_policy::steering::{Receiver, Steering};
use weir_port_tap::{Service, UplinkPort};

use super::choice::{self, Places, has};

/// See the module.
pub(in crate::switch) struct BondPort {
    service: Service,
    /// Gives each flow a queue, and with it an uplink.
    steering: Steering,
    uplinks: Vec<Arc<dyn UplinkPort>>,
    /// The uplink of each of the bond's queues, and the queue of that uplink.
    queues: Vec<(u8, usize)>,
    /// The uplinks that carry frames.
    carriers: AtomicU8,
}

impl BondPort {
    /// A port that sends by `uplinks`, as soon as some of them [carry](Self::carry) frames.
    pub(in crate::switch) fn new(
        name: String,
        uplinks: Vec<Arc<dyn UplinkPort>>,
        counters: Arc<PortCounters>,
    ) -> Self {
        let of = |(place, uplink): (u8, &Arc<dyn UplinkPort>)| {
            (0..uplink.queues()).map(move |queue| (place, queue)).collect::<Vec<_>>()
        };
        let mut queues: Vec<_> = (0..).zip(&uplinks).flat_map(of).collect();
        // The configuration keeps the bound.
        queues.truncate(weir_limits::QUEUE_PAIRS_MAX);
        let steering = Steering::new(queues.len().max(1)).expect("the number is in its bounds");
        let service = Service::new(name, counters);
        Self { service, steering, uplinks, queues, carriers: AtomicU8::new(0) }
    }

    /// The uplinks that carry frames.
    pub(super) fn carriers(&self) -> Places {
        self.carriers.load(Ordering::Acquire)
    }

    /// Sends by these uplinks from now on.
    pub(super) fn carry(&self, carriers: Places) {
        self.carriers.store(carriers, Ordering::Release);
        let uplinks: Vec<_> = self.queues.iter().map(|(uplink, _)| *uplink).collect();
        self.steering.give(&choice::table(&uplinks, carriers));
    }

    /// The uplink and its queue for frames of this queue of the bond. A worker that looked the queue up before a
    /// fail-over gets one that carries frames now.
    fn way(&self, queue: usize) -> Option<(&dyn UplinkPort, usize)> {
        let carriers = self.carriers();
        let carries = |(uplink, _): &&(u8, usize)| has(carriers, *uplink);
        let own = self.queues.get(queue).filter(carries);
        let (uplink, queue) = *own.or_else(|| self.queues.iter().find(carries))?;
        Some((&**self.uplinks.get(usize::from(uplink))?, queue))
    }
}

impl Port for BondPort {
    fn take(&self, _: usize, _: Ask, _: &mut Scratch, _: Forward<'_>) -> Taken {
        // The bond has no queue that anybody watches.
        Taken::default()
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let Some((uplink, queue)) = self.way(queue) else {
            self.service.counters().dropped(DropReason::RxNotReady, frames.len() as u64);
            return Delivered { frames: frames.len(), ..Delivered::default() };
        };
        // A kick of an uplink does not reach the frames that wait for the bond, so frames do not wait.
        Delivered { worth_waiting: false, again: false, ..uplink.deliver(queue, burst, frames) }
    }

    fn expired(&self, queue: usize, side: Side, by_ns: u64) -> Option<u64> {
        // The uplink that asked may have lost its carrier since, and its frames with it.
        let (uplink, queue) = self.way(queue)?;
        uplink.expired(queue, side, by_ns)
    }

    fn is_uplink(&self) -> bool {
        true
    }

    fn wait_ns_max(&self) -> u64 {
        let waits = self.uplinks.iter().map(|uplink| uplink.wait_ns_max());
        waits.min().unwrap_or(weir_limits::LATENCY_BUDGET_NS_DEFAULT)
    }

    fn arm_tx(&self, _queue: usize) -> bool {
        false
    }

    fn rx_queues(&self) -> usize {
        let carries = !self.service.has_failed() && self.carriers() != 0;
        if carries { self.queues.len() } else { 0 }
    }

    fn steering(&self) -> Option<&Steering> {
        Some(&self.steering)
    }

    fn fail(&self, reason: &str) {
        self.service.fail(reason);
    }
}

/// An uplink takes a frame as soon as it is placed, or drops it.
impl Receiver for BondPort {}

impl UplinkPort for BondPort {
    fn service(&self) -> &Service {
        &self.service
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn trouble(&self) -> Option<String> {
        let idle =
            || (self.carriers() == 0).then(|| "no uplink of the bond carries frames".to_owned());
        self.failure().map(str::to_owned).or_else(idle)
    }
}
