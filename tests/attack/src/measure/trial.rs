//! The trial of one attack on one weir: windows with and without the attacker in turn.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    attacker::{Attacker, Outcome},
    switch::{DIRS, RESOLVER, Switch},
    victims::{Load, Newcomer, Victims, Visit, Window, visit},
};
use crate::attack::{Attack, Setting};

/// The parameters of a trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// weir's program.
    pub weir: PathBuf,
    /// The directory of weir's sockets and log.
    pub dir: PathBuf,
    /// Number of windows with the attacker, and of those without.
    pub rounds: usize,
    /// Length of a window.
    pub window: Duration,
}

/// Wait after the attacker has started or ended.
const SETTLE: Duration = Duration::from_millis(60);
/// Longest time until weir is as before. A disconnected reader of events that left requests unread is noticed at the
/// next comment (`EVENTS_KEEP_ALIVE_SECS`, 15 s), and all others sooner.
const RECOVERY: Duration = Duration::from_secs(20);
/// Longest time for an answer after the attack.
const ANSWER: Duration = Duration::from_secs(2);
/// Longest time until the attacker's first attempt: 20 sessions with all queues take 6 s, since weir limits each to a
/// twentieth of a CPU.
const FIRST_STRIKE: Duration = Duration::from_secs(20);

/// The result of a trial.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The reasons why the attack was not survived. Empty if it was.
    pub failures: Vec<String>,
    /// Ratio of the two guests' frames per second with the attacker to those without.
    pub pps: Option<f64>,
    /// Ratio of the two guests' p99 with the attacker to that without.
    pub p99: Option<f64>,
    /// Ratio of the two guests' p99 if the attacker does the same to another weir on this machine.
    pub p99_limit: Option<f64>,
    /// The same ratio, round by round.
    pub against_limit: Paired,
    /// A newcomer's wait (ms): the median of the windows' longest waits.
    pub newcomer_ms: f64,
    /// The longest time of an answer of `weir stats` beside the attacker (ms).
    pub control_ms: Option<f64>,
    /// Time that weir took to end by SIGTERM beside the attacker (s).
    pub sigterm_s: Option<f64>,
    /// Largest growth of weir's private memory (MiB).
    pub rss_mib: f64,
    /// Difference of weir's descriptors before and after the attack.
    pub fds: i64,
    /// Log lines during the attack, for each second from its beginning to its end.
    pub log_lines_per_s: f64,
    /// Attempts in all.
    pub strikes: u64,
    /// Figures that the attack counts itself, by name.
    pub counted: BTreeMap<String, u64>,
    /// CPUs that the attacker's own process used.
    pub cpus: f64,
}

type Windows = Vec<Window>;

/// Windows with the attacker, each beside one of the same round with the attacker at another weir.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paired {
    /// Rounds in which the guests' p99 was larger with the attacker.
    pub worse: usize,
    /// Rounds.
    pub rounds: usize,
}

impl Paired {
    fn of(with: &Windows, limit: &Windows) -> Self {
        let pairs = with.iter().zip(limit);
        let worse = pairs.filter(|(with, limit)| with.p99_ns > limit.p99_ns).count();
        Self { worse, rounds: with.len().min(limit.len()) }
    }

    /// The probability of as many worse rounds or more if the two kinds of window do not differ (sign test).
    pub fn chance(self) -> f64 {
        let Self { worse, rounds } = self;
        let (mut ways, mut all) = (1.0, 0.0);
        // From the last term of Pascal's row `rounds` down to the one of `worse`.
        for k in (worse..=rounds).rev() {
            all += ways;
            ways *= k as f64 / (rounds - k + 1) as f64;
        }
        all / 2_f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX))
    }
}

/// A weir with its guests, and weir's resources before any attack.
#[derive(Debug)]
pub struct Scene {
    switch: Switch,
    victims: Victims,
    before: Held,
    setting: Setting,
}

/// Numbers of descriptors and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    fds: usize,
    threads: usize,
}

impl Held {
    fn of(switch: &Switch) -> Self {
        let fds = switch.observed().fds().saturating_sub(resolver_sockets());
        Self { fds, threads: switch.observed().threads() }
    }
}

/// Sockets to the resolver, which weir keeps for a minute for whoever asks next. Nobody else in this network namespace
/// asks the resolver.
fn resolver_sockets() -> usize {
    let to = format!(" {:08X}:0035 ", u32::from_ne_bytes(RESOLVER));
    let all = std::fs::read_to_string("/proc/net/udp").unwrap_or_default();
    all.lines().filter(|line| line.contains(&to)).count()
}

impl Scene {
    /// Starts weir and the guests.
    fn set(trial: &Trial, setting: Setting, load: Load) -> Result<Self, String> {
        let switch = Switch::start(&trial.weir, &trial.dir.join(DIRS[0]), setting)?;
        let victims = Victims::start(&switch, load)?;
        // Visits of the newcomer, so that weir has made all that it makes once, log lines included.
        for _ in 0..6 {
            let _ = visit(&switch.socket("newcomer"));
        }
        switch.compiles();
        if let Some(thread) = switch.lacks(setting) {
            return Err(format!("an option that opens sockets has no thread {thread}"));
        }
        let mut before = Held::of(&switch);
        // Without root the descriptors of a confined weir cannot be read.
        if before.fds == 0 && rustix::process::geteuid().is_root() {
            return Err("weir's descriptors cannot be counted".into());
        }
        loop {
            std::thread::sleep(SETTLE);
            let now = Held::of(&switch);
            if std::mem::replace(&mut before, now) == now {
                if setting == Setting::Open {
                    // With a keeper, the memory for learned addresses may be made later.
                    before.fds += 1;
                }
                return Ok(Self { switch, victims, before, setting });
            }
        }
    }

    /// Ends weir while its guests are connected. Returns the time that it took.
    pub fn end(mut self) -> Result<Duration, String> {
        let began = Instant::now();
        self.switch.end().map(|()| began.elapsed())
    }

    /// Ends weir beside an attacker.
    fn end_beside(self, attacker: Result<Attacker, String>, row: &mut Row) {
        let ended = attacker.and_then(|mut attacker| {
            attacker.struck(FIRST_STRIKE);
            std::thread::sleep(SETTLE);
            let ended = self.end();
            attacker.end();
            ended
        });
        match ended {
            Ok(took) => row.sigterm_s = Some(took.as_secs_f64()),
            Err(error) => row.failures.push(format!("beside the attacker: {error}")),
        }
    }
}

impl Trial {
    /// Tries `attack` against a new weir, and compares.
    ///
    /// # Errors
    /// There is no weir to attack or there are no guests to measure.
    pub fn run(&self, attack: &Attack, setting: Setting) -> Result<Row, String> {
        let load = if attack.own_share.is_none() { Load::Steady } else { Load::Greedy };
        let mut scene = Scene::set(self, setting, load)?;
        // This switch has no guests.
        let other = Switch::start(&self.weir, &self.dir.join(DIRS[1]), setting)?;
        let Scene { switch, .. } = &scene;
        let mut watch = Watch::new(switch);
        let newcomer = Newcomer::start(switch.socket("newcomer"));
        let (mut with, mut without) = (Windows::new(), Windows::new());
        let (mut well_behaved, mut limit) = (Windows::new(), Windows::new());
        let mut outcomes = Vec::new();
        for _ in 0..self.rounds {
            let (window, outcome) = self.attacked(attack, &scene, &mut watch)?;
            with.push(window);
            without.push(self.beside(&scene, || Attacker::stand_in(outcome.work(&self.weir)))?);
            limit.push(self.beside(&scene, || self.struck(attack, &other))?);
            outcomes.push(outcome);
            if attack.own_share.is_some() {
                let other = || self.attacker(&crate::floods::WELL_BEHAVED, switch, 0);
                well_behaved.push(self.beside(&scene, other)?);
            }
        }
        let mut row = watch.row(&newcomer.end(), &outcomes);
        row.pps = ratio(&with, &without, |window| window.pps);
        let beside = if well_behaved.is_empty() { &without } else { &well_behaved };
        row.p99 = ratio(&with, beside, |window| window.p99_ns);
        row.p99_limit = ratio(&limit, beside, |window| window.p99_ns);
        row.against_limit = Paired::of(&with, &limit);
        judge(&mut scene, &mut row);
        let attacker = self.attacker(attack, &scene.switch, 0);
        scene.end_beside(attacker, &mut row);
        Ok(row)
    }

    /// Makes one attempt of `attack`, from the attacker's interface `first` on, and checks that it is survived. Uses
    /// the scene of the last attack, and leaves it to the next one if all is well. The `last` attack of a class ends
    /// it.
    pub fn glance(
        &self,
        attack: &Attack,
        setting: Setting,
        first: usize,
        kept: &mut Option<Scene>,
        last: bool,
    ) -> Result<Row, String> {
        let mut scene = match kept.take() {
            Some(scene) if scene.setting == setting => scene,
            before => {
                before.map_or(Ok(Duration::ZERO), Scene::end)?;
                Scene::set(self, setting, Load::Steady)?
            }
        };
        let Scene { switch, victims, .. } = &scene;
        let mut watch = Watch::new(switch);
        let began = Instant::now();
        let mut attacker = self.attacker(attack, switch, first)?;
        let mut visits = Vec::new();
        let window = victims.window(|| {
            attacker.struck(FIRST_STRIKE);
            watch.sample(switch, self.window);
            visits.push(visit(&switch.socket("newcomer")));
            if !crate::control::is_the_administrators(attack) {
                watch.ask(switch);
            }
        });
        watch.attacked(began, Instant::now(), 0);
        let mut row = watch.row(&visits, &[attacker.end()]);
        if window.pps == 0.0 {
            row.failures.push("no frame arrived meanwhile".into());
        }
        judge(&mut scene, &mut row);
        if row.failures.is_empty() && last {
            let attacker = self.attacker(attack, &scene.switch, first);
            scene.end_beside(attacker, &mut row);
        } else if row.failures.is_empty() && !attack.outlasts {
            *kept = Some(scene);
        } else {
            row.failures.extend(scene.end().err());
        }
        Ok(row)
    }

    fn attacker(&self, attack: &Attack, switch: &Switch, first: usize) -> Result<Attacker, String> {
        Attacker::start(attack, switch.dir(), &self.weir, first)
    }

    /// An attacker that has made its first attempt.
    fn struck(&self, attack: &Attack, switch: &Switch) -> Result<Attacker, String> {
        let mut attacker = self.attacker(attack, switch, 0)?;
        attacker.struck(FIRST_STRIKE);
        Ok(attacker)
    }

    fn attacked(
        &self,
        attack: &Attack,
        Scene { switch, victims, .. }: &Scene,
        watch: &mut Watch,
    ) -> Result<(Window, Outcome), String> {
        let (began, lines) = (Instant::now(), switch.log_lines());
        let attacker = self.struck(attack, switch)?;
        watch.sample(switch, SETTLE);
        let (window, asked) = with_requests(switch, victims, || watch.sample(switch, self.window));
        watch.asked.extend(asked);
        let ended = Instant::now();
        let outcome = attacker.end();
        watch.attacked(began, ended, switch.log_lines().saturating_sub(lines));
        Ok((window, outcome))
    }

    /// A window beside a process that does nothing to this weir.
    fn beside(
        &self,
        Scene { switch, victims, .. }: &Scene,
        start: impl FnOnce() -> Result<Attacker, String>,
    ) -> Result<Window, String> {
        let process = start()?;
        std::thread::sleep(SETTLE);
        let mut watch = Watch::new(switch);
        let (window, _) = with_requests(switch, victims, || watch.sample(switch, self.window));
        process.end();
        std::thread::sleep(SETTLE / 2);
        Ok(window)
    }
}

/// A window with an administrator's requests. Every kind of window has these requests and the samples, since the guests
/// may wait for the CPU that both use. The requests run beside the window, so that a late answer does not make the
/// window longer.
fn with_requests(
    switch: &Switch,
    victims: &Victims,
    during: impl FnOnce(),
) -> (Window, Option<Asked>) {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| Asked::of(switch));
        (victims.window(during), asked.join().ok())
    })
}

/// Answers to an administrator.
#[derive(Clone, Debug)]
struct Asked {
    stats: Result<Duration, String>,
    set: Result<Duration, String>,
}

impl Asked {
    /// Requests statistics, and changes an interface.
    fn of(switch: &Switch) -> Self {
        let timed = |ask: &dyn Fn() -> Result<(), String>| {
            let began = Instant::now();
            ask().map(|()| began.elapsed())
        };
        let stats = timed(&|| switch.stats(ANSWER).map(drop));
        Self { stats, set: timed(&|| switch.set_vif("gateway", ANSWER)) }
    }
}

/// Measurements during the attack.
#[derive(Debug, Default)]
struct Watch {
    own_kib: u64,
    most_kib: u64,
    log_lines: usize,
    spans: Vec<(Instant, Instant)>,
    asked: Vec<Asked>,
}

impl Watch {
    fn ask(&mut self, switch: &Switch) {
        self.asked.push(Asked::of(switch));
    }

    fn new(switch: &Switch) -> Self {
        Self { own_kib: switch.observed().own_kib(), ..Self::default() }
    }

    /// Takes samples for the time `time`.
    fn sample(&mut self, switch: &Switch, time: Duration) {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            std::thread::sleep(left.min(Duration::from_millis(50)));
            self.most_kib = self.most_kib.max(switch.observed().own_kib());
        }
    }

    fn attacked(&mut self, began: Instant, ended: Instant, log_lines: usize) {
        self.log_lines += log_lines;
        self.spans.push((began, ended));
    }

    fn row(&self, visits: &[Visit], outcomes: &[Outcome]) -> Row {
        let longest = self.spans.iter().filter_map(|(began, ended)| {
            let within = visits.iter().filter(|visit| (*began..*ended).contains(&visit.at));
            within.map(|visit| visit.took.as_secs_f64() * 1e3).reduce(f64::max)
        });
        let whole = self.spans.first().zip(self.spans.last());
        let seconds = whole.map_or(0.0, |(first, last)| (last.1 - first.0).as_secs_f64());
        let mut row = Row {
            newcomer_ms: median(longest.collect()),
            rss_mib: self.most_kib.saturating_sub(self.own_kib) as f64 / 1024.0,
            log_lines_per_s: self.log_lines as f64 / seconds,
            strikes: outcomes.iter().map(|outcome| outcome.done).sum(),
            counted: outcomes.iter().flat_map(|outcome| outcome.counted.clone()).fold(
                BTreeMap::new(),
                |mut all, (name, count)| {
                    *all.entry(name).or_default() += count;
                    all
                },
            ),
            cpus: median(outcomes.iter().map(|outcome| outcome.cpus).collect()),
            ..Row::default()
        };
        let spans = &self.spans;
        let unserved = visits.iter().any(|visit| {
            !visit.served && spans.iter().any(|(began, ended)| (*began..*ended).contains(&visit.at))
        });
        for Asked { stats, set } in &self.asked {
            let failed =
                [("weir stats", stats), ("vif set", set)].into_iter().filter_map(|(what, it)| {
                    it.as_ref().err().map(|error| format!("`{what}` beside the attacker: {error}"))
                });
            row.failures.extend(failed);
        }
        let answers = self.asked.iter().filter_map(|asked| asked.stats.as_ref().ok());
        row.control_ms = answers.map(|took| took.as_secs_f64() * 1e3).reduce(f64::max);
        if unserved {
            row.failures.push("a newcomer was not served".into());
        }
        row.failures.extend(outcomes.iter().flat_map(|outcome| outcome.harm.clone()));
        if row.strikes == 0 && outcomes.iter().all(|outcome| outcome.harm.is_empty()) {
            let misses = outcomes.iter().flat_map(|outcome| outcome.misses.clone());
            let why = match misses.collect::<Vec<_>>() {
                misses if misses.is_empty() => "its first strike did not end in time".to_owned(),
                misses => misses.join("; "),
            };
            row.failures.push(format!("it was never carried out: {why}"));
        }
        row
    }
}

/// Waits until weir has the resources of `before`. Returns its resources then.
fn recovered(switch: &Switch, before: Held) -> Held {
    // An attack may have ended between adding and removing an interface, or with its sockets in the directory.
    switch.forget("guest");
    switch.clear_demand();
    let end = Instant::now() + RECOVERY;
    loop {
        let now = Held::of(switch);
        if now.fds <= before.fds && now.threads <= before.threads || Instant::now() > end {
            return now;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks that all is as before.
fn judge(Scene { switch, victims, before, .. }: &mut Scene, row: &mut Row) {
    if !switch.is_alive() {
        let log = switch.log();
        let last: Vec<_> = log.lines().rev().take(5).collect();
        row.failures.push(format!("weir has ended: {}", last.join(" / ")));
        return;
    }
    let now = recovered(switch, *before);
    row.fds = now.fds as i64 - before.fds as i64;
    let failures = &mut row.failures;
    if row.fds > 0 {
        failures.push(format!("{} descriptors are left", row.fds));
    }
    if now.threads > before.threads {
        failures.push(format!("{} threads are left", now.threads - before.threads));
    }
    if let Err(error) = switch.stats(ANSWER) {
        failures.push(format!("no statistics: {error}"));
    }
    if !visit(&switch.socket("newcomer")).served {
        failures.push("no newcomer is served afterwards".into());
    }
    let received = victims.received();
    let end = Instant::now() + ANSWER;
    while victims.received() == received {
        if Instant::now() > end {
            failures.push("the guests' frames do not arrive afterwards".into());
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The ratio of the medians: a window in which the host did something else is an outlier of either kind.
fn ratio(with: &Windows, without: &Windows, of: impl Fn(&Window) -> f64) -> Option<f64> {
    let middle = |windows: &Windows| median(windows.iter().map(&of).collect());
    (!with.is_empty() && !without.is_empty()).then(|| middle(with) / middle(without).max(1.0))
}

/// The median: the mean of the two middle values if their number is even, 0 if there are none.
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

/// A directory for this process's weir, short enough for socket paths.
pub fn scratch(target: &Path) -> PathBuf {
    target.join(format!("{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_did_in_one_window_is_no_attack() {
        let window = |pps| Window { pps, p99_ns: 1.0 };
        let with = vec![window(90.0), window(9.0), window(100.0)];
        let without = vec![window(100.0), window(100.0), window(10.0)];
        assert_eq!(ratio(&with, &without, |window| window.pps), Some(0.9));
        assert_eq!(ratio(&with, &Windows::new(), |window| window.pps), None);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }

    #[test]
    fn a_difference_counts_where_chance_would_seldom_make_it() {
        let chance = |worse, rounds| Paired { worse, rounds }.chance();
        assert_eq!(chance(0, 0), 1.0);
        assert_eq!(chance(0, 4), 1.0);
        assert_eq!(chance(5, 5), 1.0 / 32.0);
        assert_eq!(chance(4, 5), 6.0 / 32.0);
        assert_eq!(chance(12, 15), (455.0 + 105.0 + 15.0 + 1.0) / 32_768.0);
        let windows =
            |all: &[f64]| all.iter().map(|p99_ns| Window { pps: 1.0, p99_ns: *p99_ns }).collect();
        let with: Windows = windows(&[2.0, 9.0, 1.0]);
        assert_eq!(Paired::of(&with, &windows(&[1.0, 9.0, 2.0])), Paired { worse: 1, rounds: 3 });
    }
}
