//! A weir with a keeper, and three guests of this process: two that send to each other on all their queues, and a
//! slow one that often has no buffers, so that frames for it wait.

use std::{sync::Arc, time::Duration};

use weir_bed::{
    error::Result,
    lab::Lab,
    weir::{Setup, Vif, Weir},
};
use weir_vif::Features;

use crate::{
    account::Account,
    traffic::{Build, Flow, Pace, Settled, Traffic, Way, mac},
};

/// The two guests that send to each other, and the slow one.
const PAIR: [usize; 2] = [0, 1];
const SLOW: usize = 2;
const DAWDLE: Duration = Duration::from_micros(400);
const TICK: Duration = Duration::from_micros(500);

/// Rings of all guests.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Name of the shape.
    pub name: &'static str,
    /// `RING_PACKED` or none.
    pub format: Features,
    /// Queue pairs of the two guests.
    pub queues: u8,
}

/// Split and packed rings, with one and four queues.
pub const SHAPES: [Shape; 4] = [
    Shape { name: "split, one queue", format: Features::NONE, queues: 1 },
    Shape { name: "packed, one queue", format: Features::RING_PACKED, queues: 1 },
    Shape { name: "split, four queues", format: Features::NONE, queues: 4 },
    Shape { name: "packed, four queues", format: Features::RING_PACKED, queues: 4 },
];

/// The weir with its guests.
pub struct Scene {
    /// The guests.
    pub traffic: Traffic,
    /// weir.
    pub weir: Weir,
    /// The setup of weir.
    pub setup: Setup,
    account: Account,
    accounted: u64,
    /// Frames that did not arrive and that weir has counted with a reason.
    pub dropped: u64,
}

impl Scene {
    /// Starts everything, and waits for traffic. `more` are interfaces beyond the guests'.
    pub fn begin(lab: &Lab, shape: Shape, more: &[Vif]) -> Result<Self> {
        let of_pair = Vif { queues: Some(shape.queues), ..Vif::default() };
        let mut vifs = vec![of_pair.clone(), of_pair, Vif::default()];
        vifs.extend_from_slice(more);
        let setup = Setup { vifs, keeper: true, workers: Some(2), ..Setup::default() };
        let weir = Weir::start(lab, &setup)?;
        let build = |index: usize| {
            let slow = index == SLOW;
            Ok(Build {
                socket: weir.socket(index as u16)?,
                mac: mac(index),
                queues: if slow { 1 } else { shape.queues.into() },
                queue_size: if slow { 16 } else { 256 },
                format: shape.format,
                dawdle: if slow { DAWDLE } else { Duration::ZERO },
                tick: TICK,
            })
        };
        let builds = [0, 1, 2].into_iter().map(build).collect::<Result<Vec<_>>>()?;
        let between = |from: usize, to: usize| {
            let pace = Pace { burst: 24, window: Some(48) };
            std::iter::repeat_n(Way { from, to, pace }, shape.queues.into())
        };
        let [a, b] = PAIR;
        let to_slow = Way { from: a, to: SLOW, pace: Pace { burst: 8, window: Some(24) } };
        let ways: Vec<_> = between(a, b).chain(between(b, a)).chain([to_slow]).collect();
        let traffic = Traffic::begin(&builds, &ways)?;
        let scene =
            Self { traffic, weir, setup, account: Account::default(), accounted: 0, dropped: 0 };
        scene.traffic.await_flow(scene.traffic.flows().iter())?;
        Ok(scene)
    }

    /// Iterates over the flows between the two guests.
    pub fn fast(&self) -> impl Iterator<Item = &Arc<Flow>> + Clone {
        self.traffic.flows().iter().filter(|flow| flow.to != mac(SLOW))
    }

    /// Returns the longest time without a frame of one of these flows, since the last call.
    pub fn take_gap(&self) -> Duration {
        self.fast().map(|flow| flow.take_gap()).max().unwrap_or_default()
    }

    /// Kills weir by SIGKILL, and starts the next one at once.
    pub fn kill(&mut self) -> Result<()> {
        self.account.note(&self.weir.stats()?)?;
        self.weir.crash();
        self.account.ended();
        self.weir.launch_again()
    }

    /// Upgrades weir: another process takes over from the running one.
    pub fn upgrade(&mut self) -> Result<()> {
        self.account.note(&self.weir.stats()?)?;
        self.weir.upgrade()?;
        self.account.ended();
        Ok(())
    }

    /// Waits until all flows have frames again.
    pub fn resume(&mut self) -> Result<()> {
        let flows = self.traffic.await_flow(self.traffic.flows().iter());
        flows
            .map_err(|error| weir_bed::error::Error::Check(format!("{error}\n{}", self.weir.log())))
    }

    /// Waits until every sent frame has arrived or is lost. The result has the number of frames lost without a
    /// reason.
    pub fn settle(&mut self) -> Result<Settled> {
        let settled = self.traffic.settle(self.traffic.flows().iter());
        self.account.note(&self.weir.stats()?)?;
        let accounted = self.account.total(|_| true);
        let missing = settled.missing.saturating_sub(accounted - self.accounted);
        self.dropped += settled.missing - missing;
        self.accounted = accounted;
        self.traffic.check()?;
        Ok(Settled { missing, ..settled })
    }

    /// Returns the drops by reason.
    pub fn reasons(&self) -> String {
        self.account.reasons()
    }
}
