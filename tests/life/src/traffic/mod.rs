//! Guests of this process, the flows between them, and the fate of each frame.

mod flow;
mod station;

use std::{sync::Arc, time::Duration};

use weir_bed::{
    error::{Error, Result, check},
    process::wait_until,
};
use weir_wire::Mac;

pub use self::{
    flow::{Flow, Pace},
    station::{Build, Station},
};

/// Longest time for frames to arrive after the last one was sent, and the time without progress that ends the wait.
const ARRIVAL: Duration = Duration::from_secs(20);
const STANDSTILL: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);
/// Longest time until traffic flows again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the address of weir's interface `index`.
pub fn mac(index: usize) -> Mac {
    let [high, low] = (index as u16 + 1).to_be_bytes();
    Mac([0x52, 0x54, 0, 0x77, high, low])
}

/// A flow between two guests, by index.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Rate.
    pub pace: Pace,
}

/// Fate of all sent frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Frames that have not arrived.
    pub missing: u64,
    /// Chains that were not returned to their sender.
    pub stuck: u64,
}

/// Guests and their flows.
pub struct Traffic {
    stations: Vec<Station>,
    flows: Arc<Vec<Arc<Flow>>>,
}

impl Traffic {
    /// Plugs in all of `builds` and starts the flows `ways`.
    pub fn begin(builds: &[Build], ways: &[Way]) -> Result<Self> {
        let flow = |(id, way): (u16, &Way)| {
            Arc::new(Flow::new(id, builds[way.from].mac, mac(way.to), way.pace))
        };
        let flows: Arc<Vec<_>> = Arc::new((0..).zip(ways).map(flow).collect());
        let mut stations = Vec::new();
        flows.iter().for_each(|flow| flow.pause(true));
        for build in builds {
            let own: Vec<_> = flows.iter().filter(|flow| flow.from == build.mac).cloned().collect();
            stations.push(Station::begin(build, &own, &flows)?);
        }
        flows.iter().for_each(|flow| flow.pause(false));
        Ok(Self { stations, flows })
    }

    /// Returns all flows.
    pub fn flows(&self) -> &[Arc<Flow>] {
        &self.flows
    }

    /// Waits until some frames of each of `flows` have arrived.
    pub fn await_flow<'f>(&self, flows: impl Iterator<Item = &'f Arc<Flow>>) -> Result<()> {
        const SOME: u64 = 20;
        let flows: Vec<_> = flows.map(|flow| (flow, flow.come() + SOME)).collect();
        let still = || flows.iter().filter(|(flow, enough)| flow.come() < *enough);
        wait_until("frames to flow", PATIENCE, || Ok(still().next().is_none())).map_err(|error| {
            let of = |(flow, _): &(&Arc<Flow>, u64)| {
                let Flow { id, from, to, .. } = ***flow;
                format!("flow {id} from {from} to {to}: {} of {}", flow.come(), flow.sent())
            };
            Error::Check(format!("{error}\n{}", still().map(of).collect::<Vec<_>>().join("\n")))
        })
    }

    /// Pauses `flows` until their frames have arrived, and writes off the missing ones.
    pub fn settle<'f>(&self, flows: impl Iterator<Item = &'f Arc<Flow>> + Clone) -> Settled {
        flows.clone().for_each(|flow| flow.pause(true));
        let on_their_way = || self.on_their_way(flows.clone());
        let come = || flows.clone().map(|flow| flow.come()).sum::<u64>();
        let mut left = self.await_turns();
        let (mut still, mut before) = (Duration::ZERO, (come(), on_their_way()));
        // Time counts in samples: while this machine is suspended, no guest makes progress either.
        while !left.is_zero() && still < STANDSTILL {
            if flows.clone().all(|flow| flow.is_settled()) && on_their_way() == 0 {
                break;
            }
            std::thread::sleep(LOOK);
            left = left.saturating_sub(LOOK);
            let now = (come(), on_their_way());
            still = if now == before { still + LOOK } else { Duration::ZERO };
            before = now;
        }
        let missing = flows.clone().map(|flow| flow.write_off()).sum();
        Settled { missing, stuck: on_their_way() }
    }

    /// Returns the number of chains in flight, of the senders of these flows.
    fn on_their_way<'f>(&self, flows: impl Iterator<Item = &'f Arc<Flow>> + Clone) -> u64 {
        let sends = |station: &&Station| flows.clone().any(|flow| flow.from == station.mac());
        self.stations.iter().filter(sends).map(Station::in_flight).sum()
    }

    /// Waits until all guests' threads have seen the pause and reported their work before it. Returns the remaining
    /// patience.
    fn await_turns(&self) -> Duration {
        let turns = || self.stations.iter().flat_map(Station::turns);
        let before: Vec<_> = turns().collect();
        let mut left = ARRIVAL;
        while turns().zip(&before).any(|(now, before)| now < before + 2) && !left.is_zero() {
            std::thread::sleep(LOOK);
            left = left.saturating_sub(LOOK);
        }
        left
    }

    /// Settles flows whose receivers are in other programs: waits until their chains are returned.
    pub fn settle_uncounted<'f>(
        &self,
        flows: impl Iterator<Item = &'f Arc<Flow>> + Clone,
    ) -> Settled {
        flows.clone().for_each(|flow| flow.pause(true));
        let on_their_way = || self.on_their_way(flows.clone());
        let mut left = self.await_turns();
        while on_their_way() > 0 && !left.is_zero() {
            std::thread::sleep(LOOK);
            left = left.saturating_sub(LOOK);
        }
        Settled { missing: 0, stuck: on_their_way() }
    }

    /// Resumes all flows.
    pub fn go_on(&self) {
        self.flows.iter().for_each(|flow| flow.pause(false));
    }

    /// Fails if a guest's session has ended or if a frame has arrived with wrong bytes.
    pub fn check(&self) -> Result<()> {
        self.stations.iter().try_for_each(Station::check_alive)?;
        let corrupt: u64 = self.flows.iter().map(|flow| flow.corrupt()).sum();
        check(corrupt == 0, || format!("{corrupt} frames came with wrong bytes"))
    }

    /// Returns the number of returned chains that the guests had not made available.
    pub fn errors(&self) -> u64 {
        self.stations.iter().map(Station::errors).sum()
    }

    /// Returns the number of sent frames and of repeated ones.
    pub fn sent_and_repeated(&self) -> (u64, u64) {
        let sent = self.flows.iter().map(|flow| flow.sent()).sum();
        (sent, self.flows.iter().map(|flow| flow.repeated()).sum())
    }

    /// Ends all guests in order.
    pub fn end(self) -> Result<()> {
        self.stations.into_iter().try_for_each(Station::end)
    }
}
