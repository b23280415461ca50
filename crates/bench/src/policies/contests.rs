//! The contests: their loads and settings.

use std::time::Duration;

use weir_config::{Moderation, RxFrames, RxUsecs};
use weir_policy::moderation::Kind;
use weir_switch::stats::CallSettings;
use weir_vif::load::{bulk, mixed, pingpong, small};

use super::super::plan::{
    LARGE_FRAME_BYTES, Measurement, RETRANSMIT_TIMEOUT, SMALL_FRAME_BYTES, WARM_UP, WINDOW,
};

use super::super::slice::Slice;
use super::pairs::{
    ADAPTIVE_DELAY, ADAPTIVE_PPS, AGGREGATE_BESIDE_SENDER, AGGREGATE_PPS, Comparison, RR_LATENCY,
};
use crate::rig::{Load, Places};

/// A policy with its settings.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) name: String,
    pub(super) calls: CallSettings,
    /// Time to find the policy's hold.
    pub(super) warm_up: Duration,
}

/// A load under several settings.
pub(super) struct Contest {
    /// Name of the contest, and of its load.
    pub(super) name: String,
    pub(super) load_name: &'static str,
    pub(super) load: Load,
    /// The policies' budget, as written in the configuration.
    pub(super) budget: &'static str,
    /// Duration of this contest as a multiple of the usual one.
    pub(super) longer: u32,
    /// True if the guests accept containers.
    pub(super) containers: bool,
    /// CPUs of guests and workers.
    pub(super) places: Places,
    pub(super) settings: Vec<Setting>,
    /// Settings of the sender, if they differ from the receiver's.
    pub(super) sender_calls: Option<CallSettings>,
    pub(super) purpose: Purpose,
}

#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Compares the last setting with the best of the others.
    Grid,
    /// Compares the first setting with the second.
    Pair(&'static [Comparison]),
    /// Counts late calls.
    Breaches,
}

impl Purpose {
    /// Returns the turns of each setting in a round. Many short turns distribute disturbances over all settings.
    /// Counts are added up.
    pub(super) fn turns(self) -> u32 {
        match self {
            Self::Grid | Self::Pair(_) => 3,
            Self::Breaches => 1,
        }
    }
}

pub(super) struct Measured {
    pub(super) contest: Contest,
    /// The slices of each setting, one per turn. Their number is the same for all settings but those that were given
    /// up.
    pub(super) slices: Vec<Vec<Slice>>,
}

impl Contest {
    pub(super) fn measurement(&self) -> Measurement {
        Measurement {
            latency_budget: self.budget.parse().expect("a constant that is valid"),
            containers: self.containers,
            places: self.places,
            sender_calls: self.sender_calls,
            ..Measurement::new(self.load_name, self.load, &[])
        }
    }

    /// Returns true if `filter` is a part of the contest's name or of a figure's.
    pub(super) fn is_meant_by(&self, filter: &str) -> bool {
        let figure = match self.purpose {
            Purpose::Pair(figures) => figures.iter().any(|figure| figure.name.contains(filter)),
            Purpose::Grid | Purpose::Breaches => false,
        };
        figure || self.name.contains(filter)
    }
}

/// The policies' budget in contests that do not compare budgets.
const BUDGET: &str = "1ms";
/// The budgets of the breach count.
const BREACH_BUDGETS: [&str; 3] = ["100us", "250us", "1ms"];
/// Fixed holds (us).
pub(super) const RX_USECS: [u32; 5] = [50, 100, 250, 500, 1000];
/// A threshold of frames, VPP's default.
const RX_FRAMES: u16 = 32;
/// Rate of random arrivals. One is expected within [`BUDGET`], so a packet is mostly alone.
const LOW_RATE: u64 = 1000;
/// Rates of single packets in the breach count, each with the factor of its duration, so that one late call is few
/// per million.
const BREACH_RATES: [(&str, u64, u32); 2] = [("64B-20k", 20_000, 5), ("64B-100k", 100_000, 1)];
/// Time for a policy to find its hold.
const LEARN: Duration = Duration::from_millis(1_500);

/// Returns all contests, in the order of display.
pub(super) fn all() -> Vec<Contest> {
    let grid = loads().map(|(load_name, load)| Contest {
        settings: grid_settings(),
        ..contest("auto_vs_best_static", load_name, load, Purpose::Grid)
    });
    let breaches = BREACH_BUDGETS.into_iter().flat_map(|budget| {
        breach_loads().map(move |(load_name, load, longer)| Contest {
            settings: vec![setting(Kind::Auto), setting(Kind::Backend)],
            budget,
            longer,
            ..contest(&format!("budget_breaches_{budget}"), load_name, load, Purpose::Breaches)
        })
    });
    grid.into_iter().chain(pairs()).chain(breaches).collect()
}

fn contest(group: &str, load_name: &'static str, load: Load, purpose: Purpose) -> Contest {
    Contest {
        name: format!("{group}_{load_name}"),
        load_name,
        load,
        budget: BUDGET,
        longer: 1,
        containers: false,
        places: Places::GuestsTogether,
        settings: Vec::new(),
        sender_calls: None,
        purpose,
    }
}

/// Returns a policy with default settings.
fn setting(kind: Kind) -> Setting {
    let calls = CallSettings { moderation: Moderation(kind), ..CallSettings::default() };
    let learns = matches!(kind, Kind::Auto | Kind::AggregateAdaptive);
    Setting { name: kind.to_string(), calls, warm_up: if learns { LEARN } else { WARM_UP } }
}

/// Returns the policies with a fixed hold, and then `auto`.
pub(super) fn grid_settings() -> Vec<Setting> {
    let backend = setting(Kind::Backend);
    let held = RX_USECS.map(|usecs| {
        let rx_usecs = RxUsecs::try_from(u64::from(usecs)).ok();
        let calls = CallSettings { rx_usecs, ..backend.calls };
        Setting { name: format!("backend {usecs} us"), calls, ..backend }
    });
    let rx_frames = RxFrames::try_from(u64::from(RX_FRAMES)).ok();
    let counted = Setting {
        name: format!("backend {RX_FRAMES} frames"),
        calls: CallSettings { rx_frames, ..backend.calls },
        ..backend
    };
    let immediate = setting(Kind::Immediate);
    [immediate].into_iter().chain(held).chain([counted, setting(Kind::Auto)]).collect()
}

fn packets(frame_bytes: usize, rate: small::Rate) -> Load {
    Load::Small(small::Options { frame_bytes, rate, ..small::Options::default() })
}

fn stream() -> bulk::Options {
    bulk::Options { retransmit_timeout: RETRANSMIT_TIMEOUT, ..bulk::Options::default() }
}

fn requests() -> Load {
    Load::RequestResponse(pingpong::Options::default())
}

/// Returns the grid's loads.
fn loads() -> [(&'static str, Load); 12] {
    let (at, most) = (small::Rate::PerSecond, small::Rate::Window(WINDOW));
    let mixed = mixed::Options { stream: stream(), ..mixed::Options::default() };
    [
        ("idle", Load::Silence),
        ("64B-1k", packets(SMALL_FRAME_BYTES, at(1_000))),
        ("64B-10k", packets(SMALL_FRAME_BYTES, at(10_000))),
        ("64B-100k", packets(SMALL_FRAME_BYTES, at(100_000))),
        ("64B-max", packets(SMALL_FRAME_BYTES, most)),
        ("1500B-1k", packets(LARGE_FRAME_BYTES, at(1_000))),
        ("1500B-10k", packets(LARGE_FRAME_BYTES, at(10_000))),
        ("1500B-100k", packets(LARGE_FRAME_BYTES, at(100_000))),
        ("1500B-max", packets(LARGE_FRAME_BYTES, most)),
        ("bulk", Load::Bulk(stream())),
        ("request-response", requests()),
        ("mixed", Load::Mixed(mixed)),
    ]
}

fn breach_loads() -> impl Iterator<Item = (&'static str, Load, u32)> {
    let packets = |rate| packets(SMALL_FRAME_BYTES, rate);
    let paced = BREACH_RATES
        .map(|(name, rate, longer)| (name, packets(small::Rate::PerSecond(rate)), longer));
    paced.into_iter().chain([("64B-max", packets(small::Rate::Window(WINDOW)), 1)])
}

/// Returns the contests of one policy against another.
fn pairs() -> [Contest; 5] {
    let flood = Load::Small(small::Options {
        frame_bytes: SMALL_FRAME_BYTES,
        rate: small::Rate::Window(WINDOW),
        // Offloads need space in a container. The comparison omits them, and the application's use of packets, too.
        partial_checksum: false,
        verify: false,
    });
    let random = packets(SMALL_FRAME_BYTES, small::Rate::Random(LOW_RATE));
    let against = |tested, baseline| vec![setting(tested), setting(baseline)];
    // Containers are compared at the receiver. The sender gets its acknowledgements at once.
    let to_receiver = |group, load_name, load, comparisons| Contest {
        containers: true,
        sender_calls: Some(setting(Kind::Immediate).calls),
        ..contest(group, load_name, load, Purpose::Pair(comparisons))
    };
    [
        Contest {
            settings: against(Kind::Auto, Kind::Immediate),
            ..contest("rr_latency", "request-response", requests(), Purpose::Pair(RR_LATENCY))
        },
        Contest {
            settings: against(Kind::Aggregate, Kind::Immediate),
            places: Places::ReceiverAlone,
            ..to_receiver("aggregate_pps", "64B-max", flood, AGGREGATE_PPS)
        },
        Contest {
            settings: against(Kind::Aggregate, Kind::Immediate),
            ..to_receiver("aggregate_pps_beside_sender", "64B-max", flood, AGGREGATE_BESIDE_SENDER)
        },
        Contest {
            settings: against(Kind::AggregateAdaptive, Kind::Aggregate),
            ..to_receiver("adaptive_delay", "64B-random-1k", random, ADAPTIVE_DELAY)
        },
        Contest {
            settings: against(Kind::AggregateAdaptive, Kind::Aggregate),
            ..to_receiver("adaptive_pps", "64B-max", flood, ADAPTIVE_PPS)
        },
    ]
}
