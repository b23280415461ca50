//! The `weir.toml` of a plan.

use std::fmt::Write;

use weir_config::PlacementMode;

use super::candidate::Candidate;
use super::host::Host;

/// Returns a complete configuration: the planned settings, the uplinks, and an interface for each VM. `weir check`
/// accepts it.
pub fn weir_toml(host: &Host, plan: &Candidate) -> String {
    let mut text = String::from("[switch]\n");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "execution = \"{}\"", plan.execution);
    if let Some(realization) = plan.realization {
        let _ = writeln!(text, "realization = \"{realization}\"");
        let _ = writeln!(text, "workers = {}", plan.workers);
    }
    if plan.placement != PlacementMode::Off {
        let _ = writeln!(text, "placement = \"{}\"", plan.placement);
        if plan.pin_vcpus {
            text.push_str("pin_vcpus = true\n");
        }
    }
    for uplink in &host.uplinks {
        let (kind, interface) = (uplink.kind.as_str(), uplink.interface.as_str());
        let _ =
            write!(text, "\n[uplink.{}]\nkind = \"{kind}\"\nname = \"{interface}\"\n", uplink.name);
    }
    for group in &host.groups {
        for number in 1..=group.guests.len() {
            let _ = write!(
                text,
                "\n[vif.{}]\nlatency_budget = \"{}\"\nmoderation = \"{}\"\n",
                group.vm(number),
                group.latency_budget,
                group.moderation
            );
        }
    }
    text
}
