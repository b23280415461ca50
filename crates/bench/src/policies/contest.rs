//! A contest: a load under several settings, and the purpose of the comparison.

use std::time::Duration;

use weir_switch::stats::CallSettings;

use super::super::plan::Measurement;
use super::super::slice::Slice;
use super::pairs::Comparison;
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
