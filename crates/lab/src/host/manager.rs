//! The manager's control of latency budgets: `switch/manager/core.rs` around `weir_policy::{attempt, budget}`, for
//! hosts whose guests all run `auto`. Costs of wake-ups and calls come from the profile; the real manager measures
//! them.

use weir_policy::attempt::{Look, Traffic};
use weir_policy::budget::{Load, Split};
use weir_policy::moderation::hold_ns_max;

use super::Host;
use super::event::Event;
use crate::scenario::Endpoint;

impl Host<'_> {
    pub(super) fn start_manager(&mut self) {
        if self.manager.is_some() {
            self.calendar.after(self.scenario.law.look_ns, Event::Budget);
        }
    }

    /// Takes one look: all queues are held together until the next one, or each by itself.
    pub(super) fn split_budget(&mut self) {
        let now_ns = self.now_ns();
        let mut totals = vec![(0, 0); self.guests.len()];
        for (load, spec) in self.loads.iter().zip(&self.scenario.loads) {
            for end in [spec.from, spec.to] {
                if let Endpoint::Guest(guest) = end {
                    totals[guest].0 += load.received;
                    totals[guest].1 += load.bytes;
                }
            }
        }
        let limits_ns =
            self.scenario.guests.iter().map(|it| hold_ns_max(it.calls.latency_budget_ns));
        let budget_ns = limits_ns.clone().min().unwrap_or(0);
        let Some(manager) = &mut self.manager else { return };
        let mut traffic = Vec::new();
        for (vif, (counted, (frames, bytes))) in (0..).zip(manager.guests.iter_mut().zip(totals)) {
            let new = frames - counted.frames;
            if new > 0 {
                counted.busy_until_ns = now_ns + self.scenario.law.traffic_ns();
            }
            if now_ns < counted.busy_until_ns {
                traffic.push(Traffic {
                    vif,
                    frames: new,
                    bytes: bytes.saturating_sub(counted.bytes),
                });
            }
            (counted.frames, counted.bytes) = (frames, bytes);
        }
        let elapsed_ns = now_ns - std::mem::replace(&mut manager.looked_ns, now_ns);
        let together = manager.together.look(&Look { elapsed_ns, budget_ns, traffic: &traffic });
        let profile = &self.scenario.profile;
        let load = Load {
            budget_ns,
            uplink_cost_ns: profile.uplink_interrupt_ns as f64,
            call_cost_ns: (profile.call_ns + profile.interrupt_ns) as f64,
            vifs: traffic.len() as u32, // fewer than ports
        };
        let found_ns = self.scenario.uplinks.iter().map(|it| it.hold_ns).max().unwrap_or(0);
        let longer_ns = match together {
            true => Split::beyond(found_ns, load).uplink_ns - found_ns,
            false => 0,
        };
        for (uplink, spec) in self.uplinks.iter_mut().zip(&self.scenario.uplinks) {
            uplink.hold_ns = spec.hold_ns + longer_ns;
        }
        for (guest, limit_ns) in self.guests.iter_mut().zip(limits_ns) {
            guest.rx_calls.hold(limit_ns - longer_ns, together);
            guest.tx_calls.set_hold_ns_max(limit_ns - longer_ns);
        }
        self.calendar.after(self.scenario.law.look_ns, Event::Budget);
    }
}
