//! Splits a latency budget between the layers that hold frames (Dong 2011 §4.2).
//!
//! Frames from the uplink are held twice: the uplink gathers them for up to T_p, each queue's calls
//! are held for up to T_v, and T_p + T_v = T_worst is the budget (Eq. 1). The CPU cost is C_p /
//! T_p + n C_v / T_v (Eq. 2), with C_p the cost of an uplink wake-up, C_v that of a call and n the
//! guests with traffic. The cost is least for
//!
//! ```text
//! T_p = T_worst / (1 + sqrt(C_v / C_p) sqrt(n))      (Eq. 4)
//! ```
//!
//! **Any number of layers**, such as a switch on the host, one in each hypervisor that is itself a
//! VM, and the guests there ([`shares`]): layer i holds for T_i in n_i places, and an event there
//! costs C_i. Minimise `sum C_i n_i / T_i` subject to `sum T_i = T_worst`. Every term falls with
//! its T_i. At the minimum, moving time between layers gains nothing, so all derivatives are equal:
//! `C_i n_i / T_i^2 = lambda` (Lagrange), or `T_i = sqrt(C_i n_i / lambda)`. The T_i add up to the
//! budget, so
//!
//! ```text
//! T_i = T_worst sqrt(C_i n_i) / (sqrt(C_1 n_1) + ... + sqrt(C_k n_k))
//! ```
//!
//! Each term is convex, so this minimum is the only one. Two layers with C_1 n_1 = C_p and C_2 n_2
//! = n C_v give Eq. 4.

/// Bounds of a believed cost (ns). A call or wake-up takes tens of ns to a millisecond, whatever
/// was measured or reported.
pub const COST_NS_MIN: f64 = 10.0;
/// See [`COST_NS_MIN`].
pub const COST_NS_MAX: f64 = 1e6;
/// Inputs of a split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// T_worst (ns).
    pub budget_ns: u64,
    /// C_p: CPU time of an uplink wake-up (ns).
    pub uplink_cost_ns: f64,
    /// C_v: CPU time of a call (ns).
    pub call_cost_ns: f64,
    /// n: number of interfaces with traffic.
    pub vifs: u32,
}

/// A layer that holds frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// C_i: CPU time of the end of a hold (ns).
    pub cost_ns: f64,
    /// n_i: number of places that hold frames, each with its own holds.
    pub places: u32,
}

impl Layer {
    /// sqrt(C_i n_i), to which its share is proportional.
    fn weight(self) -> f64 {
        (believed(self.cost_ns) * f64::from(self.places)).sqrt()
    }

    /// Returns layers behind one another as one: its share is the sum of theirs.
    pub fn of<const LAYERS: usize>(layers: [Self; LAYERS]) -> Self {
        let weight: f64 = layers.map(Self::weight).iter().sum();
        Self { cost_ns: weight.powi(2), places: 1 }
    }
}

/// Returns how long each layer may hold (ns), in the order of `layers`. The module's documentation
/// derives the formula.
///
/// The shares always add up to the budget. A layer without places gets nothing. The last layer gets
/// the remainder, such as a rounded ns. A cost that is not a number or out of bounds counts as the
/// nearest bound.
pub fn shares<const LAYERS: usize>(budget_ns: u64, layers: [Layer; LAYERS]) -> [u64; LAYERS] {
    let weights = layers.map(Layer::weight);
    let all: f64 = weights.iter().sum();
    let mut left_ns = budget_ns;
    let mut shares = weights.map(|weight| {
        let share = if all > 0.0 { weight / all } else { 0.0 };
        // Exact enough: a budget is at most a second, and a float-to-int cast saturates.
        let ns = ((budget_ns as f64 * share) as u64).min(left_ns);
        left_ns -= ns;
        ns
    });
    if let Some(last) = shares.last_mut() {
        *last += left_ns;
    }
    shares
}

/// A budget in two parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// T_p: how long the uplink may gather (ns).
    pub uplink_ns: u64,
    /// T_v: how long a queue may hold a call (ns).
    pub vif_ns: u64,
}

impl Split {
    /// Splits a budget in two by Dong 2011 Eq. 4 ([`shares`] of two layers). The parts always add
    /// up to the budget. With no interfaces the uplink may have all of it. A cost that is not a
    /// number or out of bounds counts as the nearest bound.
    pub fn of(load: Load) -> Self {
        let uplink = Layer { cost_ns: load.uplink_cost_ns, places: 1 };
        let calls = Layer { cost_ns: load.call_cost_ns, places: load.vifs };
        let [uplink_ns, vif_ns] = shares(load.budget_ns, [uplink, calls]);
        Self { uplink_ns, vif_ns }
    }

    /// Splits a budget where the uplink was found to gather for `found_ns` already. The budget
    /// bounds the delay that weir adds, and `found_ns` is not weir's, so the split is over the sum
    /// of both. The uplink gathers for at least `found_ns`. Its additional time and T_v add up to
    /// the budget.
    pub fn beyond(found_ns: u64, load: Load) -> Self {
        let all_ns = load.budget_ns.saturating_add(found_ns);
        let split = Self::of(Load { budget_ns: all_ns, ..load });
        let uplink_ns = split.uplink_ns.max(found_ns);
        Self { uplink_ns, vif_ns: all_ns.saturating_sub(uplink_ns) }
    }
}

/// Clamps a cost to the bounds (ns). NaN becomes the smallest cost.
pub(crate) fn believed(cost_ns: f64) -> f64 {
    if cost_ns.is_nan() { COST_NS_MIN } else { cost_ns.clamp(COST_NS_MIN, COST_NS_MAX) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(vifs: u32) -> Load {
        Load { budget_ns: 1_250_000, uplink_cost_ns: 4_000.0, call_cost_ns: 4_000.0, vifs }
    }

    #[test]
    fn dong_2011_eq_4_with_equal_costs() {
        // Figs. 12-15: of 1250 us, the best steps of 250 us are 500 (second 750) for one guest, 500
        // (second 250) for 3, 250 for 6 and 9.
        let us = |vifs| Split::of(load(vifs)).uplink_ns / 1_000;
        assert_eq!([us(1), us(3), us(6), us(9)], [625, 457, 362, 312]);
    }

    #[test]
    fn a_split_costs_no_more_than_any_other_of_the_same_budget() {
        for vifs in [1, 4, 20] {
            let load = Load { call_cost_ns: 9_000.0, ..load(vifs) };
            let cost = |uplink_ns: u64| {
                load.uplink_cost_ns / uplink_ns as f64
                    + f64::from(vifs) * load.call_cost_ns / (load.budget_ns - uplink_ns) as f64
            };
            let best = cost(Split::of(load).uplink_ns);
            for uplink_ns in (10_000..load.budget_ns).step_by(10_000) {
                assert!(best <= cost(uplink_ns) * (1.0 + 1e-9), "{vifs}: {uplink_ns}");
            }
        }
    }

    /// A weir in a guest can report its layers as one, and split what it gets.
    #[test]
    fn layers_behind_one_another_count_as_one() {
        let layer = |cost_ns, places| Layer { cost_ns, places };
        for (uplink_ns, call_ns, inner_ns, places) in [
            (4_000.0, 4_000.0, 4_000.0, 1),
            (2_000.0, 9_000.0, 5_000.0, 8),
            (900.0, 50.0, 300.0, 3),
        ] {
            let all = [layer(uplink_ns, 1), layer(call_ns, 1), layer(inner_ns, places)];
            let [first, rest] = shares(1_250_000, [all[0], Layer::of([all[1], all[2]])]);
            let [second, third] = shares(rest, [all[1], all[2]]);
            for (twice, once) in [first, second, third].into_iter().zip(shares(1_250_000, all)) {
                assert!(twice.abs_diff(once) <= 2, "{twice} and {once} ns");
            }
        }
    }

    #[test]
    fn what_an_uplink_gathered_already_is_none_of_the_budget() {
        for found_ns in [0, 250_000, 2_000_000] {
            let load = load(3);
            let split = Split::beyond(found_ns, load);
            assert!(split.uplink_ns >= found_ns);
            assert_eq!(split.uplink_ns - found_ns + split.vif_ns, load.budget_ns);
        }
        let whole = Split::beyond(0, load(3));
        assert_eq!(Split::beyond(250_000, Load { budget_ns: 1_000_000, ..load(3) }), whole);
    }

    #[test]
    fn nobody_with_traffic_leaves_all_to_the_uplink() {
        assert_eq!(Split::of(load(0)), Split { uplink_ns: 1_250_000, vif_ns: 0 });
    }

    #[test]
    fn each_layer_has_the_root_of_what_it_costs() {
        let layer = |cost_ns, places| Layer { cost_ns, places };
        // sqrt(1) : sqrt(4) : sqrt(9)
        let layers = [layer(1_000.0, 1), layer(2_000.0, 2), layer(1_000.0, 9)];
        assert_eq!(shares(600_000, layers), [100_000, 200_000, 300_000]);
        assert_eq!(shares(600_000, [layer(1_000.0, 0); 2]), [0, 600_000], "nobody has traffic");
        assert_eq!(shares(600_000, [layer(1_000.0, 1), layer(1_000.0, 0)]), [600_000, 0]);
        assert_eq!(shares(600_000, []), []);
    }

    fn any_cost() -> impl Strategy<Value = f64> {
        prop_oneof![any::<f64>(), Just(0.0), Just(f64::NAN), 1.0..1e5]
    }

    proptest! {
        #[test]
        fn no_other_split_among_three_layers_costs_less(
            budget_ns in 10_000_000..=weir_limits::LATENCY_BUDGET_NS_MAX,
            layers in prop::array::uniform3((100.0..100_000.0, 1u32..1_000)),
            others in prop::array::uniform3(1.0..1e6f64),
        ) {
            let layers = layers.map(|(cost_ns, places)| Layer { cost_ns, places });
            let cost = |times_ns: [f64; 3]| -> f64 {
                let each = layers.iter().zip(times_ns);
                each.map(|(it, time_ns)| it.cost_ns * f64::from(it.places) / time_ns).sum()
            };
            let shares = shares(budget_ns, layers);
            prop_assert_eq!(shares.iter().sum::<u64>(), budget_ns);
            let scale = budget_ns as f64 / others.iter().sum::<f64>();
            let best = cost(shares.map(|ns| ns as f64));
            prop_assert!(best <= cost(others.map(|it| it * scale)) * (1.0 + 1e-6));
            // Nearly equal layers do no better either.
            for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)] {
                let mut near = shares.map(|ns| ns as f64);
                let moved_ns = near[from] / 50.0;
                near[from] -= moved_ns;
                near[to] += moved_ns;
                prop_assert!(best <= cost(near) * (1.0 + 1e-6), "{from} to {to}");
            }
        }

        #[test]
        fn parts_add_up_to_the_budget_for_any_numbers(
            budget_ns in prop_oneof![0..=weir_limits::LATENCY_BUDGET_NS_MAX, any::<u64>()],
            (uplink_cost_ns, call_cost_ns) in (any_cost(), any_cost()),
            vifs in any::<u32>(),
        ) {
            let load = Load { budget_ns, uplink_cost_ns, call_cost_ns, vifs };
            let split = Split::of(load);
            prop_assert_eq!(split.uplink_ns.checked_add(split.vif_ns), Some(budget_ns));
        }
    }
}
