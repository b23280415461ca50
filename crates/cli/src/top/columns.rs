//! The columns of the list, the choice of those that fit, and the order of ports.

use std::cmp::Ordering;

use clap::ValueEnum;
use weir_switch::stats::PortKind;
use weir_text::{short, time};

use super::rates::PortRates;

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
