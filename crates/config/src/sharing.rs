//! An interface's share of the workers, and how fast it may send and receive.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::{Rate, RateLimit};
use weir_limits as limits;
use weir_policy::schedule::{Kind, Share, Window};

use super::error::Fault;
use super::keys::{Change, keys};
use super::values::{
    BitRate, BurstSize, LateTurns, PacketBurst, PacketRate, Period, Schedule, ValueError, Weight,
};

keys! {
    /// The rates at which an interface may receive. Frames beyond them are dropped.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Receiving {
        /// The rate at which the guest may receive, in bits/s.
        rate: Option<BitRate> => Change<BitRate> = None, [named("rx_rate"), not_of_copies()];
        /// The bytes that may come at once, beyond `rx_rate`.
        burst: Option<BurstSize> => Change<BurstSize> = None, [named("rx_burst"), not_of_copies()];
        /// The rate at which the guest may receive, in frames/s.
        packets_per_second: Option<PacketRate> => Change<PacketRate> = None,
            [named("rx_packets_per_second"), not_of_copies()];
        /// The frames that may come at once, beyond `rx_packets_per_second`.
        packet_burst: Option<PacketBurst> => Change<PacketBurst> = None,
            [named("rx_packet_burst"), not_of_copies()];
    }

    /// Changes of [`Receiving`] by `weir vif set`. Clearing a rate clears its burst.
    #[derive(Debug, Clone, Copy)]
    pub struct ReceivingChanges;
}

keys! {
    /// An interface's share of the workers, and its rates.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Sharing {
        /// Its part of a worker's time, in proportion to others'.
        weight: Option<Weight> => Change<Weight> = None, [];
        /// The turns that may be late.
        window: Option<LateTurns> => Change<LateTurns> = None, [];
        /// The period in which one turn is due.
        period: Option<Period> => Change<Period> = None, [];
        /// The rate at which the guest may send, in bits/s.
        rate: Option<BitRate> => Change<BitRate> = None, [];
        /// The bytes that may be sent at once, beyond `rate`.
        burst: Option<BurstSize> => Change<BurstSize> = None, [];
        /// The rate at which the guest may send, in frames/s.
        packets_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
        /// The frames that may be sent at once, beyond `packets_per_second`.
        packet_burst: Option<PacketBurst> => Change<PacketBurst> = None, [];
        /// The rates at which the guest may receive.
        receive: Receiving => ReceivingChanges = Receiving::default(), [];
    }

    /// Changes of [`Sharing`] by `weir vif set`. Clearing a rate clears its burst.
    #[derive(Debug, Clone, Copy)]
    pub struct SharingChanges;
}

/// The fault of a key that is set without another key that it needs.
fn without(key: &'static str, has: bool, needs: &'static str, has_needed: bool) -> Option<Fault> {
    (has && !has_needed).then(|| Fault {
        keys: [key, needs],
        reason: format!("`{key}` without `{needs}`"),
        help: format!("add `{needs}`"),
    })
}

impl Receiving {
    fn faults(&self) -> impl Iterator<Item = Fault> {
        let Self { rate, burst, packets_per_second: packets, packet_burst } = self;
        let bytes = without("rx_burst", burst.is_some(), "rx_rate", rate.is_some());
        let (key, needs) = ("rx_packet_burst", "rx_packets_per_second");
        bytes.into_iter().chain(without(key, packet_burst.is_some(), needs, packets.is_some()))
    }

    /// The receiving rates for the engine. The default burst is
    /// [`POLICE_BURST_NS_DEFAULT`](limits::POLICE_BURST_NS_DEFAULT) of the rate, but at least a GSO frame or a burst of
    /// frames.
    pub fn limit(&self) -> RateLimit {
        let Self { rate, burst, packets_per_second, packet_burst } = *self;
        rate_limit(
            (rate, burst),
            (packets_per_second, packet_burst),
            limits::POLICE_BURST_NS_DEFAULT,
        )
    }
}

impl Sharing {
    /// Keys that do not fit each other, or do not fit the switch's `schedule` if it is known.
    pub(super) fn faults(&self, schedule: Option<Schedule>) -> Vec<Fault> {
        let Self { window, period, rate, burst, packets_per_second: packets, packet_burst, .. } =
            self;
        let pairs = [
            without("window", window.is_some(), "period", period.is_some()),
            without("period", period.is_some(), "window", window.is_some()),
            without("burst", burst.is_some(), "rate", rate.is_some()),
            without(
                "packet_burst",
                packet_burst.is_some(),
                "packets_per_second",
                packets.is_some(),
            ),
        ];
        let uses = [
            ("weight", self.weight.is_some(), Kind::Drr),
            ("window", self.window.is_some(), Kind::Dwcs),
        ];
        let unused = uses.into_iter().filter_map(|(key, has, kind)| {
            let schedule = schedule.filter(|it| has && it.0 != kind)?;
            Some(Fault {
                keys: [key, key],
                reason: format!("`{key}` has no effect with schedule \"{schedule}\""),
                help: format!("remove it, or set `schedule = \"{kind}\"` in [switch]"),
            })
        });
        pairs.into_iter().flatten().chain(self.receive.faults()).chain(unused).collect()
    }

    /// The interface's share of turns, for the engine.
    pub fn share(&self) -> Share {
        let window = self.window.zip(self.period).and_then(|(late, period)| {
            // Both values were checked when they were made.
            Window::new(late.x, late.y, period.get()).ok()
        });
        Share { weight: self.weight.map_or(1, Weight::get), window }
    }

    /// The share with sending limited to `bytes` in each `interval_us`, in place of its own rate in bits/s. A limit
    /// above the highest rate is none.
    ///
    /// # Errors
    /// [`ValueError`] if the rate is below the lowest one.
    pub fn with_credit(self, bytes: u64, interval_us: u32) -> Result<Self, ValueError> {
        let bits_per_s = u128::from(bytes) * 8_000_000 / u128::from(interval_us.max(1));
        let bits_per_s = u64::try_from(bits_per_s).unwrap_or(u64::MAX);
        if bits_per_s > limits::RATE_BITS_MAX {
            return Ok(Self { rate: None, burst: None, ..self });
        }
        let burst = bytes.clamp(limits::FRAME_LEN_MAX.into(), limits::RATE_BURST_BYTES_MAX);
        let rate = Some(format!("{bits_per_s}bit").parse()?);
        Ok(Self { rate, burst: Some(format!("{burst}B").parse()?), ..self })
    }

    /// The sending rates for the engine. The default burst is
    /// [`RATE_BURST_NS_DEFAULT`](limits::RATE_BURST_NS_DEFAULT) of the rate, but at least a GSO frame or a burst of
    /// frames.
    pub fn limit(&self) -> RateLimit {
        let bits = (self.rate, self.burst);
        let packets = (self.packets_per_second, self.packet_burst);
        rate_limit(bits, packets, limits::RATE_BURST_NS_DEFAULT)
    }
}

/// A limit in the engine's numbers. The default burst is `burst_ns` of the rate, but at least a GSO frame or a
/// burst of frames.
fn rate_limit(
    (rate, burst): (Option<BitRate>, Option<BurstSize>),
    (packet_rate, packet_burst): (Option<PacketRate>, Option<PacketBurst>),
    burst_ns: u64,
) -> RateLimit {
    let in_default_time = |per_s: u64| per_s / (1_000_000_000 / burst_ns);
    let bits = rate.map(|rate| {
        let default = in_default_time(rate.get()).max(8 * u64::from(limits::FRAME_LEN_MAX));
        Rate { per_s: rate.get(), burst: burst.map_or(default, |burst| 8 * burst.get()) }
    });
    let packets = packet_rate.map(|rate| {
        let per_s = rate.get().into();
        let default = in_default_time(per_s).max(limits::BURST_MAX as u64);
        Rate { per_s, burst: packet_burst.map_or(default, |burst| burst.get().into()) }
    });
    RateLimit { bits, packets }
}

impl ReceivingChanges {
    /// Clears the burst of a rate that is cleared.
    fn settle(&mut self, _: &mut Receiving) {
        self.burst.clear_with(&self.rate);
        self.packet_burst.clear_with(&self.packets_per_second);
    }
}

impl SharingChanges {
    /// Clears the burst of a rate that is cleared, and the period of a window that is cleared.
    fn settle(&mut self, _: &mut Sharing) {
        if self.window == Change::Clear {
            self.period = Change::Clear;
        }
        self.burst.clear_with(&self.rate);
        self.packet_burst.clear_with(&self.packets_per_second);
    }
}

#[cfg(test)]
mod tests;
