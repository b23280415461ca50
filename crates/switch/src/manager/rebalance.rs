//! The indirection table of a port with several receive queues: the load of its entries, and their moves.

use std::collections::VecDeque;

use weir_engine::Port;
use weir_engine::stats::PortCounters;
use weir_limits::INDIRECTION_LEN;
use weir_policy::steering::rebalance::{EntryLoad, Look, Move, Rebalancer};

use crate::explain::{MoveExplanation, SteeringExplanation, SteeringQueue};

/// Looks closer together than this (ns) do not measure the load well.
const LOOK_NS_MIN: u64 = 50_000_000;
/// A move that stays pending for this many looks is given up: its flows never let the queue drain.
const LOOKS_MAX: u32 = 5;
/// Moves that are remembered for explaining.
const MOVES_REMEMBERED: usize = 8;

/// Rebalances one port's table.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Made when the port first has a choice of queues: it takes 3 KiB, and most ports have one queue.
    rebalancer: Option<Box<Rebalancer>>,
    looked_ns: Option<u64>,
    moves: VecDeque<Move>,
}

/// A port's counters.
struct Seen {
    entries: [EntryLoad; INDIRECTION_LEN],
    queues: Vec<u64>,
}

impl Seen {
    /// The port's counters; `None` if there is no choice of queues.
    fn of(port: &dyn Port, counters: &PortCounters) -> Option<Self> {
        let queues = port.rx_queues();
        let entries = port.steering().filter(|_| queues > 1)?.entries();
        let received = counters.rx.iter().take(queues).map(|queue| queue.frames.get());
        Some(Self { entries, queues: received.collect() })
    }

    fn look(&self, now_ns: u64) -> Look<'_> {
        Look { now_ns, entries: &self.entries, queues: &self.queues }
    }
}

impl Table {
    /// Advances pending moves, and begins others if the port `rebalances`.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        port: &dyn Port,
        counters: &PortCounters,
        rebalances: bool,
    ) {
        let Some(steering) = port.steering() else { return };
        if self.looked_ns.is_some_and(|before_ns| now_ns < before_ns + LOOK_NS_MIN) {
            return;
        }
        self.looked_ns = Some(now_ns);
        let Some(seen) = Seen::of(port, counters) else {
            *self = Self::default();
            return;
        };
        let rebalancer = self.rebalancer.get_or_insert_default();
        for wanted in rebalancer.look(&seen.look(now_ns)) {
            if rebalances && steering.begin_move(wanted.entry, wanted.to, port) {
                self.moves.truncate(MOVES_REMEMBERED - 1);
                self.moves.push_front(wanted);
            }
        }
        steering.look_after(LOOKS_MAX, port);
    }

    /// The table's explanation; `None` if there is no choice of queues.
    pub(super) fn explain(
        &self,
        now_ns: u64,
        port: &dyn Port,
        counters: &PortCounters,
        rebalances: bool,
    ) -> Option<SteeringExplanation> {
        let seen = Seen::of(port, counters)?;
        let look = seen.look(now_ns);
        let loads = match &self.rebalancer {
            Some(rebalancer) => rebalancer.queue_frames_per_s(&look),
            None => Rebalancer::default().queue_frames_per_s(&look),
        };
        let queue = |(queue, frames_per_s): (usize, u64)| {
            let its = |entry: &&EntryLoad| usize::from(entry.queue) == queue;
            let entries = || seen.entries.iter().filter(its);
            let moving = entries().filter(|entry| entry.moving_to.is_some());
            SteeringQueue { entries: entries().count(), moving: moving.count(), frames_per_s }
        };
        let explain = |made: &Move| MoveExplanation {
            ago_ns: now_ns.saturating_sub(made.at_ns),
            entry: made.entry,
            from: made.from,
            to: made.to,
            frames_per_s: made.frames_per_s,
            from_frames_per_s: made.from_frames_per_s,
            to_frames_per_s: made.to_frames_per_s,
        };
        let steering = port.steering()?;
        Some(SteeringExplanation {
            rebalances,
            given: steering.is_given(),
            moved_entries: steering.moved_entries(),
            queues: loads.into_iter().enumerate().map(queue).collect(),
            moves: self.moves.iter().map(explain).collect(),
        })
    }
}

/// True if the port can have several receive queues.
pub(super) fn steers(port: &dyn Port, queues_max: usize) -> bool {
    queues_max > 1 && port.steering().is_some()
}

#[cfg(test)]
mod tests {
    //! A guest with two receive queues. All of its flows begin on the first queue.

    use std::time::{Duration, Instant};

    use tempfile::TempDir;
    use weir_config::{LatencyBudget, MacAddress, PortName, Setting, VifChanges, VifConfig};
    use weir_engine::{Options as EngineOptions, symmetric_hash};
    use weir_limits::INDIRECTION_LEN;
    use weir_vif::{Options, QueuePair, Vif};
    use weir_wire::Offload;

    use crate::control::{ControlHandler, Request, Response};
    use crate::explain::SteeringExplanation;
    use crate::switch::{Meeting, Switch};

    const PATIENCE: Duration = Duration::from_secs(60);
    const FLOWS: usize = 40;

    fn add(switch: &Switch, dir: &TempDir, name: &str, queues: usize) -> (Vif, Vec<QueuePair>) {
        let socket = dir.path().join(format!("{name}.sock"));
        let name: PortName = name.parse().unwrap();
        let mut config = VifConfig::new(name.clone(), socket.to_str().unwrap().parse().unwrap());
        config.queues = (queues as u64).try_into().unwrap();
        switch.add_vif(config, Meeting::Configured).unwrap();
        let options = Options { queues, ..Options::new(MacAddress::derived_from(&name).into()) };
        let mut vif = Vif::connect(socket, &options).unwrap();
        let pairs = vif.queue_pairs();
        (vif, pairs)
    }

    fn set(switch: &Switch, setting: &str) {
        let name: PortName = "web0".parse().unwrap();
        let setting: Setting = setting.parse().unwrap();
        let changes = VifChanges::from_settings(&name, &[setting]).unwrap();
        assert_eq!(switch.handle(Request::VifSet { name, changes: changes.into() }), Response::Ok);
    }

    fn steering(switch: &Switch) -> Option<SteeringExplanation> {
        match switch.handle(Request::VifExplain { name: "web0".parse().unwrap() }) {
            Response::Explained { explanation } => explanation.steering,
            other => panic!("{other:?}"),
        }
    }

    /// Datagrams of flows that are first steered to queue 0, by different entries.
    fn flows(from: &Vif, to: &Vif) -> Vec<Vec<u8>> {
        let datagram = |port: u16| {
            let mut frame = [to.mac().0, from.mac().0].concat();
            frame.extend([8, 0, 0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            frame.extend([port, 53, 12, 0].map(u16::to_be_bytes).concat());
            frame.extend([0; 4]);
            frame
        };
        let mut entries = [false; INDIRECTION_LEN];
        let mut flows = Vec::new();
        for frame in (1000..).map(datagram) {
            let entry = symmetric_hash(&frame) as usize % INDIRECTION_LEN;
            if entry.is_multiple_of(2) && !std::mem::replace(&mut entries[entry], true) {
                flows.push(frame);
            }
            if flows.len() == FLOWS {
                break;
            }
        }
        flows
    }

    /// Sends a frame of each flow and takes received frames, until `is` holds.
    fn traffic(
        switch: &Switch,
        flows: &[Vec<u8>],
        sender: &mut QueuePair,
        receivers: &mut [QueuePair],
        is: impl Fn(&SteeringExplanation) -> bool,
    ) -> SteeringExplanation {
        let start = Instant::now();
        loop {
            // Enough frames of each flow to keep a queue busy, even if this thread waits for a CPU each time.
            for flow in flows.iter().cycle().take(4 * FLOWS) {
                // If the ring is full, the frame is skipped.
                let _ = sender.send(flow, &Offload::NONE);
            }
            sender.flush();
            std::thread::sleep(Duration::from_millis(2));
            for pair in &mut *receivers {
                while pair.recv(|_| ()).is_some() {}
            }
            let explained = steering(switch);
            if let Some(explained) = explained.clone().filter(&is) {
                return explained;
            }
            assert!(start.elapsed() < PATIENCE, "{explained:?}");
        }
    }

    #[test]
    fn entries_of_a_busy_queue_move_unless_they_are_to_stay() {
        let dir = tempfile::tempdir().unwrap();
        let control = dir.path().join("control.sock").to_str().unwrap().parse().unwrap();
        let options = EngineOptions { workers: 2, ..EngineOptions::default() };
        let switch = Switch::empty(options, LatencyBudget::DEFAULT, control).unwrap();
        let (web0, mut receivers) = add(&switch, &dir, "web0", 2);
        let (db0, mut senders) = add(&switch, &dir, "db0", 1);
        assert!(steering(&switch).is_none_or(|steering| steering.moved_entries == 0));
        // The hello lets the switch learn the receiver's port.
        let flows = flows(&db0, &web0);
        let mut hello = flows[0].clone();
        hello[..6].fill(0xff);
        hello[6..12].copy_from_slice(&web0.mac().0);
        receivers[0].send(&hello, &Offload::NONE).unwrap();
        receivers[0].flush();

        set(&switch, "rss_rebalance=false");
        let busy = |now: &SteeringExplanation| now.queues[0].frames_per_s > 3_000;
        let fixed = traffic(&switch, &flows, &mut senders[0], &mut receivers, busy);
        assert_eq!((fixed.rebalances, fixed.moved_entries), (false, 0));
        assert_eq!(fixed.queues.iter().map(|queue| queue.entries).collect::<Vec<_>>(), [64, 64]);

        set(&switch, "rss_rebalance=true");
        let even = |now: &SteeringExplanation| {
            now.queues[1].frames_per_s > now.queues[0].frames_per_s / 2 && now.moved_entries >= 8
        };
        let moved = traffic(&switch, &flows, &mut senders[0], &mut receivers, even);
        assert!(moved.rebalances && moved.moves.iter().all(|made| (made.from, made.to) == (0, 1)));
        let stats = switch.stats();
        let port = stats.ports.iter().find(|port| port.name.as_str() == "web0").unwrap();
        assert!(port.rss_moved >= moved.moved_entries && port.queues[1].rx.frames > 0);
    }
}
