//! The rates between two looks at the switch, the columns of the list, the choice of those that fit, and the order of
//! ports.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use clap::ValueEnum;
use serde::Serialize;
use weir_config::PortName;
use weir_switch::stats::{PortKind, PortState, PortStats, QueueStats, SwitchStats, Times};
use weir_text::{short, time};

/// A column of the list, by which it can be sorted. Directions are the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// The port's name
    Name,
    /// How far it has come
    State,
    /// Frames a second that it receives
    Rx,
    /// Their bits
    RxBits,
    /// Frames a second that it sends
    Tx,
    /// Their bits
    TxBits,
    /// Worker time for what it sends
    Cpu,
    /// How long its interrupts were held, on average
    Hold,
    /// Its latency budget
    Budget,
    /// Interrupts later than the budget allows, a second
    Late,
    /// Dropped frames a second
    Drops,
    /// The most frequent reason of drops
    Reason,
    /// The policy's last reason
    Why,
}

impl Column {
    /// All columns, from left to right.
    pub(super) const ALL: [Self; 13] = [
        Self::Name,
        Self::State,
        Self::Rx,
        Self::RxBits,
        Self::Tx,
        Self::TxBits,
        Self::Cpu,
        Self::Hold,
        Self::Budget,
        Self::Late,
        Self::Drops,
        Self::Reason,
        Self::Why,
    ];

    /// The columns by importance: a narrow terminal shows the first that fit.
    const BY_WORTH: [Self; 13] = [
        Self::Name,
        Self::Rx,
        Self::Tx,
        Self::Hold,
        Self::Budget,
        Self::Cpu,
        Self::Drops,
        Self::State,
        Self::RxBits,
        Self::TxBits,
        Self::Reason,
        Self::Why,
        Self::Late,
    ];

    pub(super) fn header(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::State => "STATE",
            Self::Rx => "RX P/S",
            Self::RxBits => "BIT/S",
            Self::Tx => "TX P/S",
            Self::TxBits => "BIT/S",
            Self::Cpu => "CPU %",
            Self::Hold => "HOLD",
            Self::Budget => "BUDGET",
            Self::Late => "LATE/S",
            Self::Drops => "DROP/S",
            Self::Reason => "DROP REASON",
            Self::Why => "HELD BECAUSE",
        }
    }

    /// True for text, which is aligned left. Numbers are aligned right.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Name | Self::State | Self::Reason | Self::Why)
    }

    pub(super) fn cell(self, port: &PortRates) -> String {
        let of_vif = |text: String| match port.kind {
            PortKind::Vif => text,
            PortKind::Uplink | PortKind::Own => "-".into(),
        };
        match self {
            Self::Name => port.name.to_string(),
            Self::State => port.state.to_string(),
            Self::Rx => number(port.rx.packets_per_s),
            Self::RxBits => number(port.rx.bits_per_s),
            Self::Tx => number(port.tx.packets_per_s),
            Self::TxBits => number(port.tx.bits_per_s),
            Self::Cpu => format!("{:.1}", port.cpu_percent),
            Self::Hold => port.hold_ns.map_or_else(|| "-".into(), time),
            Self::Budget => of_vif(time(port.latency_budget_ns)),
            Self::Late => of_vif(number(port.breaches_per_s)),
            Self::Drops => number(port.all_drops_per_s()),
            Self::Reason => port.main_reason(),
            Self::Why => port.why.clone(),
        }
    }

    /// The order of two ports: text from A to Z, numbers from the largest, and equal ones by name.
    pub(super) fn order(self, a: &PortRates, b: &PortRates, reverse: bool) -> Ordering {
        let largest = |of: fn(&PortRates) -> f64| of(b).total_cmp(&of(a));
        let order = match self {
            Self::Name => a.name.cmp(&b.name),
            Self::State => (a.state as u8).cmp(&(b.state as u8)).reverse(),
            Self::Rx => largest(|it| it.rx.packets_per_s),
            Self::RxBits => largest(|it| it.rx.bits_per_s),
            Self::Tx => largest(|it| it.tx.packets_per_s),
            Self::TxBits => largest(|it| it.tx.bits_per_s),
            Self::Cpu => largest(|it| it.cpu_percent),
            // The hold is compared with the budget, so that interfaces near their limits come first.
            Self::Hold => {
                largest(|it| it.hold_ns.unwrap_or(0) as f64 / it.latency_budget_ns.max(1) as f64)
            }
            Self::Budget => b.latency_budget_ns.cmp(&a.latency_budget_ns),
            Self::Late => largest(|it| it.breaches_per_s),
            Self::Drops => largest(PortRates::all_drops_per_s),
            // Ports without a reason come last.
            Self::Reason => by_text(&a.main_reason(), &b.main_reason()),
            Self::Why => by_text(&a.why, &b.why),
        };
        let order = if reverse { order.reverse() } else { order };
        order.then_with(|| a.name.cmp(&b.name))
    }

    /// The column's width, if the longest name has `name` characters.
    fn width(self, name: usize) -> usize {
        match self {
            Self::Name => name,
            Self::State => 9,
            Self::Cpu => 5,
            Self::Hold | Self::Budget => 7,
            Self::Reason => 22,
            Self::Why => 24,
            Self::Rx | Self::RxBits | Self::Tx | Self::TxBits | Self::Late | Self::Drops => 6,
        }
    }
}

fn by_text(a: &str, b: &str) -> Ordering {
    a.is_empty().cmp(&b.is_empty()).then_with(|| a.cmp(b))
}

/// A rate. A small one is not shown as 0.
pub(super) fn number(rate: f64) -> String {
    match rate {
        rate if rate > 0.0 && rate < 1.0 => "<1".into(),
        rate => short(rate.round() as u64),
    }
}

/// The columns that fit into `width`, with their widths: the last column takes the rest. A name gets a third of the
/// screen at most, or 16 characters, because names differ at their ends.
pub(super) fn fitting(width: usize, longest_name: usize) -> Vec<(Column, usize)> {
    let name = longest_name.clamp(4, (width / 3).max(16)).min(width.max(1));
    let mut left = width;
    let mut shown = Vec::new();
    for column in Column::BY_WORTH {
        let needs = column.width(name) + usize::from(!shown.is_empty());
        if needs > left {
            continue;
        }
        left -= needs;
        shown.push(column);
    }
    let widths = Column::ALL.into_iter().filter(|column| shown.contains(column));
    let mut widths: Vec<_> = widths.map(|column| (column, column.width(name))).collect();
    if let Some((Column::Why | Column::Reason, width)) = widths.last_mut() {
        *width += left;
    }
    widths
}

/// The switch, between two looks.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Rates {
    /// weir's version.
    pub(super) version: String,
    /// Seconds since the switch started.
    pub(super) uptime_s: f64,
    /// Seconds between the two looks; 0 after the first look, when all rates are 0.
    pub(super) interval_s: f64,
    /// Worker threads.
    pub(super) workers: usize,
    /// Processor time of all workers, in percent of a core.
    pub(super) workers_cpu_percent: f64,
    /// Each port, in weir's order.
    pub(super) ports: Vec<PortRates>,
}

/// One port, between two looks. Directions are the guest's: it receives rx and sends tx.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PortRates {
    /// The port's name.
    pub(super) name: PortName,
    /// Interface or uplink.
    pub(super) kind: PortKind,
    /// The port's state.
    pub(super) state: PortState,
    /// The direction into the port.
    pub(super) rx: Flow,
    /// The direction out of the port.
    pub(super) tx: Flow,
    /// Interrupts per second, in both directions.
    pub(super) calls_per_s: f64,
    /// Worker time for the frames that it sent, in percent of a core.
    pub(super) cpu_percent: f64,
    /// The average hold of calls (ns); none without calls.
    pub(super) hold_ns: Option<u64>,
    /// The average time from a frame's arrival to the guest's notification (ns).
    pub(super) latency_ns: Option<u64>,
    /// The longest time for which a frame can be held (ns); 0 on an uplink.
    pub(super) latency_budget_ns: u64,
    /// Notifications later than the budget allows, per second.
    pub(super) breaches_per_s: f64,
    /// Dropped frames per second, by reason; only reasons of this interval.
    pub(super) drops_per_s: BTreeMap<String, f64>,
    /// Dropped frames since the port was added, by reason.
    pub(super) dropped: BTreeMap<String, u64>,
    /// The reason for the present hold of calls, or the reason of a stop.
    pub(super) why: String,
}

/// The traffic in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Flow {
    /// Frames per second.
    pub(super) packets_per_s: f64,
    /// Bits per second.
    pub(super) bits_per_s: f64,
}

impl Rates {
    /// The rates from `before` to `now`. If `before` is of another weir or missing, there are no rates.
    pub(super) fn between(before: Option<&SwitchStats>, now: &SwitchStats) -> Self {
        let before = before.filter(|before| before.uptime_s < now.uptime_s);
        let over = Over { seconds: before.map_or(0.0, |before| now.uptime_s - before.uptime_s) };
        let ports = before.map_or(&[][..], |before| &before.ports);
        let known: HashMap<_, _> = ports.iter().map(|port| (port.name.as_str(), port)).collect();
        let cpu_ns = |stats: &SwitchStats| stats.workers.iter().map(|it| it.cpu_ns).sum::<u64>();
        let rates = |port: &PortStats| over.port(known.get(port.name.as_str()).copied(), port);
        Self {
            version: now.version.clone(),
            uptime_s: now.uptime_s,
            interval_s: over.seconds,
            workers: now.workers.len(),
            workers_cpu_percent: over.percent(before.map_or(0, cpu_ns), cpu_ns(now)),
            ports: now.ports.iter().map(rates).collect(),
        }
    }

    /// The sum of `of` over all ports.
    pub(super) fn sum(&self, of: fn(&PortRates) -> f64) -> f64 {
        self.ports.iter().map(of).sum()
    }
}

impl PortRates {
    /// Dropped frames per second, for any reason.
    pub(super) fn all_drops_per_s(&self) -> f64 {
        self.drops_per_s.values().sum()
    }

    /// The most frequent reason in this interval, or `was` with the most frequent one so far.
    pub(super) fn main_reason(&self) -> String {
        let now = self.drops_per_s.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let before = || self.dropped.iter().filter(|(_, count)| **count > 0).max_by_key(|it| it.1);
        match (now, before()) {
            (Some((reason, _)), _) => reason.clone(),
            (None, Some((reason, _))) => format!("was {reason}"),
            (None, None) => String::new(),
        }
    }
}

/// The time between two looks.
#[derive(Clone, Copy)]
struct Over {
    /// 0 if there was no first look.
    seconds: f64,
}

impl Over {
    /// A counter's rate. A port that was removed and added again starts at zero.
    fn rate(self, before: u64, now: u64) -> f64 {
        match self.seconds > 0.0 {
            true => now.saturating_sub(before) as f64 / self.seconds,
            false => 0.0,
        }
    }

    /// A time in nanoseconds as a rate, in percent of a core.
    fn percent(self, before_ns: u64, now_ns: u64) -> f64 {
        self.rate(before_ns, now_ns) / 1e7
    }

    fn flow(self, before: &QueueStats, now: &QueueStats) -> Flow {
        Flow {
            packets_per_s: self.rate(before.frames, now.frames),
            bits_per_s: 8.0 * self.rate(before.bytes, now.bytes),
        }
    }

    /// The mean of the times that were added in the interval.
    fn mean(self, before: &Times, now: &Times) -> Option<u64> {
        let came = now.count.checked_sub(before.count).filter(|_| self.seconds > 0.0)?;
        now.sum.checked_sub(before.sum)?.checked_div(came)
    }

    fn port(self, before: Option<&PortStats>, now: &PortStats) -> PortRates {
        let nothing = PortStats::new(now.name.clone(), now.kind);
        // A port that has just been added starts at zero.
        let before = before.unwrap_or(&nothing);
        let calls = |port: &PortStats| port.rx.calls + port.tx.calls;
        let breaches = |port: &PortStats| port.budget_breaches.values().sum::<u64>();
        let drops_per_s = now.drops.iter().filter_map(|(reason, count)| {
            let rate = self.rate(before.drops.get(reason).copied().unwrap_or(0), *count);
            (rate > 0.0).then(|| (reason.clone(), rate))
        });
        let decision = now.decision.as_ref().filter(|_| now.state == PortState::Running);
        let why = match &now.stopped_reason {
            Some(reason) => Some(reason),
            None => decision.map(|it| &it.reason),
        };
        PortRates {
            name: now.name.clone(),
            kind: now.kind,
            state: now.state,
            rx: self.flow(&before.rx, &now.rx),
            tx: self.flow(&before.tx, &now.tx),
            calls_per_s: self.rate(calls(before), calls(now)),
            cpu_percent: self.percent(before.worker_ns, now.worker_ns),
            hold_ns: self.mean(&before.hold_ns, &now.hold_ns),
            latency_ns: self.mean(&before.latency_ns, &now.latency_ns),
            latency_budget_ns: now.latency_budget_ns,
            breaches_per_s: self.rate(breaches(before), breaches(now)),
            drops_per_s: drops_per_s.collect(),
            dropped: now.drops.clone(),
            // The text may come from a front end.
            why: weir_text::plain::plain_short(why.map_or("", String::as_str)),
        }
    }
}
