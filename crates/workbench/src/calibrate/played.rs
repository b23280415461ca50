//! Costs that cannot be measured alone. They are fitted until isolated packets cost the same in virtual time as on
//! this machine.
//!
//! A loop measures the cost of a sleep or a kick alone. Among other threads the cost depends on the CPU's last user.
//! The lab therefore simulates the measured run, and changes each cost by the difference. Runs that `weir lab
//! validate` predicts are not used.

use weir_lab::host;
use weir_lab::profile::Profile;
use weir_lab::scenario::Scenario;

use super::super::LabError;
use super::super::error::Source;
use super::super::experiment::Experiment;
use super::super::measure::{Counts, GuestCounts};
use super::super::profile::Machine;
use super::super::quiet::How;
use super::cost::{self, median, whole};
use super::stages::ALONE_PER_S;

/// Number of simulations.
const STEPS: usize = 16;
/// The largest factor by which fitting may change a measured cost. Fitting distributes the unknown rest, and must not
/// replace measurements.
const APART_MAX: f64 = 2.0;

/// Cost of an isolated packet (ns).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Packet {
    /// CPU time of the worker.
    pub(super) worker_ns: f64,
    /// CPU time of the sender.
    pub(super) sender_ns: f64,
    /// CPU time of the receiver.
    pub(super) receiver_ns: f64,
}

impl Packet {
    /// Returns the cost of a packet between two moments; `None` if no packet arrived.
    pub(super) fn measured(before: &Counts, after: &Counts) -> Option<Self> {
        let ([sent_before, got_before], [sent, got]) =
            (before.guests.as_slice(), after.guests.as_slice())
        else {
            return None;
        };
        let packets = got.load.rx_frames.saturating_sub(got_before.load.rx_frames);
        let each = |ns: u64| ns as f64 / packets as f64;
        let cpu = |before: &GuestCounts, after: &GuestCounts| {
            each(after.cpu_ns.saturating_sub(before.cpu_ns))
        };
        (packets > 0).then(|| Self {
            worker_ns: each(after.worker_cpu_ns.saturating_sub(before.worker_cpu_ns)),
            sender_ns: cpu(sent_before, sent),
            receiver_ns: cpu(got_before, got),
        })
    }

    /// Returns the distance from another cost: the sum over the figures of the absolute logarithms of their ratios.
    fn apart(&self, other: &Self) -> f64 {
        let each = |it: &Self| [it.worker_ns, it.sender_ns, it.receiver_ns];
        let pairs = each(self).into_iter().zip(each(other));
        pairs.map(|(one, other)| (one.max(1.0) / other.max(1.0)).ln().abs()).sum()
    }

    pub(super) fn middle(rounds: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| median(&rounds.iter().map(value).collect::<Vec<_>>());
        Self {
            worker_ns: of(|it| it.worker_ns),
            sender_ns: of(|it| it.sender_ns),
            receiver_ns: of(|it| it.receiver_ns),
        }
    }
}

/// Returns `profile` with the costs of [`cost::SET`] fitted so that a packet costs as nearly as possible what was
/// `measured`.
///
/// # Errors
/// The run cannot be simulated.
pub(super) fn set(profile: Profile, measured: Packet) -> Result<Profile, LabError> {
    let mut scenario = scenario()?;
    scenario.profile = profile;
    let (mut best, mut least) = (profile, f64::INFINITY);
    for _ in 0..STEPS {
        let played = play(&scenario)?;
        let apart = played.apart(&measured);
        if apart < least {
            (best, least) = (scenario.profile, apart);
        }
        scenario.profile = next(&profile, &scenario.profile, &played, &measured);
    }
    Ok(best)
}

/// Returns `now` with each cost changed by half of the difference between `played` and `measured`, within bounds
/// around `first`.
fn next(first: &Profile, now: &Profile, played: &Packet, measured: &Packet) -> Profile {
    let mut profile = *now;
    // A sleep belongs to the worker, a kick to the sender, and an interrupt with its consequences to the receiver.
    let more = |cost_ns: u64, measured_ns: f64, played_ns: f64| {
        (cost_ns as f64 + measured_ns - played_ns) / cost_ns.max(1) as f64
    };
    let sleep = more(now.sleep_ns + now.settle_ns, measured.worker_ns, played.worker_ns);
    let kick = more(now.kick_ns, measured.sender_ns, played.sender_ns);
    let receiver = measured.receiver_ns / played.receiver_ns.max(1.0);
    for (cost, of, times) in [
        (&mut profile.sleep_ns, first.sleep_ns, sleep),
        (&mut profile.settle_ns, first.settle_ns, sleep),
        (&mut profile.kick_ns, first.kick_ns, kick),
        (&mut profile.interrupt_ns, first.interrupt_ns, receiver),
        (&mut profile.interrupt_busy_ns, first.interrupt_busy_ns, receiver),
        (&mut profile.poll_end_ns, first.poll_end_ns, receiver),
        (&mut profile.poll_end_busy_ns, first.poll_end_busy_ns, receiver),
    ] {
        let to = *cost as f64 * times.clamp(APART_MAX.recip(), APART_MAX).sqrt();
        let of = of as f64;
        *cost = whole(to.clamp(of / APART_MAX, of * APART_MAX));
    }
    profile
}

/// Returns the cost of a packet in virtual time.
fn play(scenario: &Scenario) -> Result<Packet, LabError> {
    let report = host::run(scenario).map_err(|source| LabError::Run {
        experiment: NAME.to_owned(),
        point: "the only point".to_owned(),
        seed: scenario.seed,
        source: Box::new(source),
    })?;
    let packets = report.loads.first().map_or(0, |load| load.latency.count());
    let each = |ns: u64| ns as f64 / packets.max(1) as f64;
    let guest = |number: usize| report.guests.get(number).map_or(0.0, |it| each(it.cpu_ns));
    Ok(Packet {
        worker_ns: each(report.workers.iter().map(|worker| worker.cpu_ns).sum()),
        sender_ns: guest(0),
        receiver_ns: guest(1),
    })
}

/// The run's name in errors.
const NAME: &str = "packets that come alone";

/// Returns the scenario of the run with isolated packets in `stages.rs`.
fn scenario() -> Result<Scenario, LabError> {
    let text = format!(
        r#"title = "{NAME}"
profile = "none"
seeds = [1]
start = "1ms"
warm_up = "200ms"
run = "2s"
topology = {{ sockets = 1, llcs_per_socket = 1, cores_per_llc = 2, threads_per_core = 1 }}
worker = [{{ cpus = [1] }}]
realization = {{ guests_are_threads = true, tx_calls_when_full = true, timers_ahead = true, awaits_answers = true }}
guests = {{ count = 2, cpus = [0], moderation = "immediate", latency_budget = "250us" }}
plot = {{ x = "packets", y = ["cpu_percent"] }}
sweep = [{{ name = "packets", points = ["alone"], sweep = {{ "guests.count" = [2] }} }}]
[[load]]
name = "packets"
from = "guests"
to = "guests"
only = [1]
traffic = {{ datagrams = {{ bytes = 64, arrivals = {{ regular = "{ALONE_PER_S}pps" }} }} }}
"#
    );
    let assumed = cost::profile("assumed", &[], None, &How::default());
    let machine = |_: &str| Machine::parse(Source { name: NAME, text: &assumed }).map(Some);
    let experiment = Experiment::parse(Source { name: NAME, text: &text }, None, machine)?;
    let (_, scenario) = experiment.points.into_iter().next().ok_or_else(|| {
        LabError::NotMeasured { experiment: NAME.to_owned(), why: "it has no point".to_owned() }
    })?;
    Ok(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_set_so_that_what_is_played_takes_what_was_measured() {
        let real = Profile {
            sleep_ns: 4_000,
            settle_ns: 4_000,
            kick_ns: 9_000,
            interrupt_ns: 6_000,
            interrupt_busy_ns: 2_000,
            poll_end_ns: 3_000,
            poll_end_busy_ns: 1_000,
            ..Profile::example()
        };
        let mut scenario = scenario().unwrap();
        scenario.profile = real;
        let measured = play(&scenario).unwrap();
        let first = Profile {
            sleep_ns: 3_000,
            settle_ns: 3_000,
            kick_ns: 12_000,
            interrupt_ns: 4_000,
            ..real
        };
        scenario.profile = first;
        let before = play(&scenario).unwrap().apart(&measured);
        scenario.profile = set(first, measured).unwrap();
        let after = play(&scenario).unwrap().apart(&measured);
        assert!(after < 0.25 && after < before / 4.0, "{before} before, {after} after");
        for ((field, before), (_, after)) in
            first.fields().into_iter().zip(scenario.profile.fields())
        {
            assert!(before == after || cost::SET.contains(&field), "{field} was not to be set");
            let times = after as f64 / before.max(1) as f64;
            assert!(before == after || (0.49..2.01).contains(&times), "{field}: {before}, {after}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_set_no_worse_than_it_was() {
        let mut scenario = scenario().unwrap();
        scenario.profile = Profile::example();
        let played = play(&scenario).unwrap();
        let measured = Packet { worker_ns: 1e6, receiver_ns: 1.0, ..played };
        let before = played.apart(&measured);
        scenario.profile = set(Profile::example(), measured).unwrap();
        assert!(play(&scenario).unwrap().apart(&measured) <= before);
    }
}
