//! One attack on one weir: windows with the attacker and windows without, in turn.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    attacker::{Attacker, Outcome},
    newcomer::{Newcomer, Visit, visit},
    switch::Switch,
    victims::{Load, Victims, Window},
};
use crate::attack::Attack;

/// How an attack is tried.
#[derive(Clone, Debug)]
pub struct Trial {
    /// weir's program.
    pub weir: PathBuf,
    /// Where its sockets and its log go.
    pub dir: PathBuf,
    /// Windows with the attacker; as many without. Without any, it comes once, and nothing is compared.
    pub rounds: usize,
    /// How long a window is.
    pub window: Duration,
}

/// After the attacker has come or gone.
const SETTLE: Duration = Duration::from_millis(60);
/// How long weir may take to be as it was: longer than it waits for who is gone.
const RECOVERY: Duration = Duration::from_secs(8);
/// How long it may take to answer when all is over.
const ANSWER: Duration = Duration::from_secs(2);
/// How long an attacker may need for its first strike.
const FIRST_STRIKE: Duration = Duration::from_secs(6);

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Why it was not survived; nothing where it was.
    pub failures: Vec<String>,
    /// The two guests' frames a second with the attacker, to those without.
    pub pps: Option<f64>,
    /// Their p99, likewise.
    pub p99: Option<f64>,
    /// How long a newcomer waited (ms): the median of the longest wait of each window.
    pub newcomer_ms: f64,
    /// How much more memory of its own weir had at most (MiB).
    pub rss_mib: f64,
    /// Descriptors that weir has more than before, when the attacker is gone.
    pub fds: i64,
    /// Lines in the log a second, while the attacker is there.
    pub log_lines_per_s: f64,
    /// Strikes in all.
    pub strikes: u64,
    /// Processors that the attacker's own process had.
    pub cpus: f64,
}

/// Windows of one kind.
type Windows = Vec<Window>;

impl Trial {
    /// Tries `attack`.
    ///
    /// # Errors
    /// There is no weir to attack, or no guests to notice.
    pub fn run(&self, attack: &Attack) -> Result<Row, String> {
        let mut switch = Switch::start(&self.weir, &self.dir)?;
        let steady = self.rounds == 0 || attack.own_share.is_none();
        let load = if steady { Load::Steady } else { Load::Greedy };
        let victims = Victims::start(&switch, load)?;
        // Whatever weir makes once, it has made: a newcomer's lines in the log, too.
        for _ in 0..6 {
            let _ = visit(&switch.socket("newcomer"));
        }
        victims.window(|| std::thread::sleep(SETTLE));
        let before = (switch.observed().fds(), switch.observed().threads());
        let mut watch = Watch { own_kib: switch.observed().own_kib(), ..Watch::default() };
        let newcomer = Newcomer::start(switch.socket("newcomer"));
        let (mut with, mut without, mut well_behaved) =
            (Windows::new(), Windows::new(), Windows::new());
        let mut outcomes = Vec::new();
        for _ in 0..self.rounds.max(1) {
            let (window, outcome) = self.attacked(attack, &switch, &victims, &mut watch)?;
            let cpus = outcome.cpus;
            with.push(window);
            outcomes.push(outcome);
            if self.rounds == 0 {
                break;
            }
            without.push(self.beside(&victims, Attacker::stand_in(cpus)?));
            if attack.own_share.is_some() {
                let other =
                    Attacker::start(&crate::floods::WELL_BEHAVED, switch.dir(), &self.weir)?;
                well_behaved.push(self.beside(&victims, other));
            }
        }
        let visits = newcomer.end();
        let mut row = watch.row(&visits, &outcomes);
        row.pps = ratio(&with, &without, |window| window.pps);
        let beside = if well_behaved.is_empty() { &without } else { &well_behaved };
        row.p99 = ratio(&with, beside, |window| window.p99_ns);
        row.fds = recovered(&switch, before);
        judge(&mut switch, &victims, &mut row, before);
        Ok(row)
    }

    fn attacked(
        &self,
        attack: &Attack,
        switch: &Switch,
        victims: &Victims,
        watch: &mut Watch,
    ) -> Result<(Window, Outcome), String> {
        let (began, lines) = (Instant::now(), switch.log_lines());
        let mut attacker = Attacker::start(attack, switch.dir(), &self.weir)?;
        let sample = |watch: &mut Watch, time: Duration| {
            let end = Instant::now() + time;
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                std::thread::sleep(left.min(Duration::from_millis(50)));
                watch.most_kib = watch.most_kib.max(switch.observed().own_kib());
            }
        };
        sample(watch, SETTLE);
        let window = victims.window(|| sample(watch, self.window));
        if self.rounds == 0 {
            attacker.struck(FIRST_STRIKE);
        }
        let ended = Instant::now();
        let outcome = attacker.end();
        watch.log_lines += switch.log_lines().saturating_sub(lines);
        watch.attacked += began.elapsed();
        watch.spans.push((began, ended));
        Ok((window, outcome))
    }

    /// A window beside another process.
    fn beside(&self, victims: &Victims, other: Attacker) -> Window {
        std::thread::sleep(SETTLE);
        let window = victims.window(|| std::thread::sleep(self.window));
        drop(other.end());
        std::thread::sleep(SETTLE / 2);
        window
    }
}

/// What is noted while the attacker is there.
#[derive(Debug, Default)]
struct Watch {
    own_kib: u64,
    most_kib: u64,
    log_lines: usize,
    attacked: Duration,
    spans: Vec<(Instant, Instant)>,
}

impl Watch {
    fn row(&self, visits: &[Visit], outcomes: &[Outcome]) -> Row {
        let longest = self.spans.iter().filter_map(|(began, ended)| {
            let within = visits.iter().filter(|visit| (*began..*ended).contains(&visit.at));
            within.map(|visit| visit.took.as_secs_f64() * 1e3).reduce(f64::max)
        });
        let mut row = Row {
            newcomer_ms: median(longest.collect()),
            rss_mib: self.most_kib.saturating_sub(self.own_kib) as f64 / 1024.0,
            log_lines_per_s: self.log_lines as f64 / self.attacked.as_secs_f64(),
            strikes: outcomes.iter().map(|outcome| outcome.done).sum(),
            cpus: median(outcomes.iter().map(|outcome| outcome.cpus).collect()),
            ..Row::default()
        };
        let spans = &self.spans;
        let unserved = visits.iter().any(|visit| {
            !visit.served && spans.iter().any(|(began, ended)| (*began..*ended).contains(&visit.at))
        });
        if unserved {
            row.failures.push("a newcomer was not served".into());
        }
        row.failures.extend(outcomes.iter().flat_map(|outcome| outcome.harm.clone()));
        if row.strikes == 0 {
            let misses = outcomes.iter().flat_map(|outcome| outcome.misses.clone());
            let misses: Vec<_> = misses.collect();
            row.failures.push(format!("it was never carried out: {}", misses.join("; ")));
        }
        row
    }
}

/// Waits until weir has what it had before; the descriptors that it has more.
fn recovered(switch: &Switch, (fds, threads): (usize, usize)) -> i64 {
    // An administrator's attack may have been ended between adding and removing.
    switch.forget("guest");
    let end = Instant::now() + RECOVERY;
    loop {
        let now = (switch.observed().fds(), switch.observed().threads());
        if now.0 <= fds && now.1 <= threads || Instant::now() > end {
            return now.0 as i64 - fds as i64;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether all is as it was.
fn judge(switch: &mut Switch, victims: &Victims, row: &mut Row, (_, threads): (usize, usize)) {
    let failures = &mut row.failures;
    if !switch.is_alive() {
        let log = switch.log();
        let last: Vec<_> = log.lines().rev().take(5).collect();
        failures.push(format!("weir has ended: {}", last.join(" / ")));
        return;
    }
    if row.fds != 0 {
        failures.push(format!("{} descriptors are left", row.fds));
    }
    let left = switch.observed().threads().saturating_sub(threads);
    if left > 0 {
        failures.push(format!("{left} threads are left"));
    }
    if let Err(error) = switch.stats(ANSWER) {
        failures.push(format!("no statistics: {error}"));
    }
    if !visit(&switch.socket("newcomer")).served {
        failures.push("no newcomer is served afterwards".into());
    }
    let before = victims.received();
    let end = Instant::now() + ANSWER;
    while victims.received() == before {
        if Instant::now() > end {
            failures.push("the guests' frames do not arrive afterwards".into());
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ratio(with: &Windows, without: &Windows, of: impl Fn(&Window) -> f64) -> Option<f64> {
    let ratios: Vec<_> = with.iter().zip(without).map(|(a, b)| of(a) / of(b).max(1.0)).collect();
    (!ratios.is_empty()).then(|| median(ratios))
}

/// The middle value, of an even number the mean of the middle two; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (None, _) => 0.0,
        (Some(value), 1) => *value,
        (Some(upper), _) => {
            f64::midpoint(*upper, values.get(middle.wrapping_sub(1)).copied().unwrap_or(*upper))
        }
    }
}

/// A directory for the weir of this process, short enough for sockets' paths.
pub fn scratch(target: &Path) -> PathBuf {
    target.join(format!("{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_windows_side_by_side() {
        let window = |pps| Window { pps, p99_ns: 1.0 };
        let with = vec![window(50.0), window(9.0), window(100.0)];
        let without = vec![window(100.0), window(10.0), window(100.0)];
        assert_eq!(ratio(&with, &without, |window| window.pps), Some(0.9));
        assert_eq!(ratio(&with, &Windows::new(), |window| window.pps), None);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }
}
