//! The keys for the VLANs or the network of a port, or for the ports that it mirrors. Together they
//! are one setting.

use super::error::Problem;
use super::keys::{Alters, Key, NONE, Rows, Value};
use super::section::Section;
use super::values::{MirroredPorts, NetworkName, TrunkVids, Vid, VlanMode};
use super::vif::VifConfig;

/// The keys that a port may have in place of `vlan`, each with its description.
pub(super) const IN_PLACE_OF_VLAN: &[(&str, &str)] = &[
    ("trunk", "The VLANs of a trunk, or `all`."),
    ("native", "The VLAN of a trunk's untagged frames."),
    ("network", "The network that it is in, in place of a VLAN."),
    ("mirror", "The ports whose frames it gets copies of, and nothing else."),
];

/// The names of all keys that set the mode.
pub(super) fn vlan_keys() -> impl Iterator<Item = &'static str> {
    std::iter::once("vlan").chain(IN_PLACE_OF_VLAN.iter().map(|(name, _)| *name))
}

impl Value for VlanMode {
    fn read(&mut self, _: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) {
        let said = vlan(section, problems);
        if said != Self::Unset {
            *self = said;
        }
    }

    fn show(&self, key: Key, rows: &mut Rows) {
        rows.push((key, (*self != Self::Unset).then(|| self.to_string())));
    }
}

impl Alters<VlanMode> for Option<VlanMode> {
    fn read(_: &Key, section: &mut Section<'_>, problems: &mut Vec<Problem>) -> Self {
        // A change may set one key to `none` and give another key a value. `native` is reset together with `trunk`.
        if section.has("trunk") && section.is_word("native", NONE) {
            section.hide("native");
        }
        let mut is_taken_back = false;
        for key in ["vlan", "trunk", "network", "mirror"] {
            if section.is_word(key, NONE) {
                section.hide(key);
                is_taken_back = true;
            }
        }
        let mode = vlan(section, problems);
        (is_taken_back || mode != VlanMode::Unset).then_some(mode)
    }

    fn apply(self, to: &mut VlanMode) {
        if let Some(mode) = self {
            *to = mode;
        }
    }
}

/// Reads `network`, `vlan`, `trunk` and `native`, which exclude or need each other.
fn vlan(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> VlanMode {
    let access = section.take::<Vid>("vlan", problems);
    let trunk = section.take::<TrunkVids>("trunk", problems);
    let native = section.take::<Vid>("native", problems);
    let network = section.take::<NetworkName>("network", problems);
    if let Some(mirror) = section.take::<MirroredPorts>("mirror", problems) {
        let others = ["vlan", "trunk", "native", "network"];
        if let Some(other) = others.into_iter().find_map(|key| section.place(key)) {
            problems.push(
                Problem::new(format!("`{}` has `mirror` and takes part", section.title))
                    .label(mirror.span.clone(), "gets copies only")
                    .label(other, "takes part in the switch")
                    .help("keep one: a mirror gets copies and nothing else, and may send nothing"),
            );
        }
        for (key, _) in VifConfig::template().rows() {
            let key = match key.of_copies {
                true => continue,
                false => key.name,
            };
            // A setting that is reset to its default is allowed beside `mirror`.
            if !section.has(key) || section.is_word(key, NONE) {
                continue;
            }
            if let Some(span) = section.refuse(key) {
                section.is_refused("mirror");
                problems.push(
                    Problem::new(format!("`{}` has `mirror` and `{key}`", section.title))
                        .label(mirror.span.clone(), "gets copies only")
                        .label(span, "does not hold for copies")
                        .help("keep one: a mirror gets copies of all frames, of any length"),
                );
            }
        }
        return VlanMode::Mirror(mirror.value);
    }
    if let Some(network) = &network
        && let Some(other) = ["vlan", "trunk"].into_iter().find_map(|key| section.place(key))
    {
        problems.push(
            Problem::new(format!("`{}` has both `network` and a VLAN", section.title))
                .label(network.span.clone(), "puts it into a network")
                .label(other, "puts it elsewhere")
                .help("keep one; a network can be a VLAN: `vlan` of its table"),
        );
    }
    if let (Some(access), Some(trunk)) = (&access, &trunk) {
        problems.push(
            Problem::new(format!("`{}` has both `vlan` and `trunk`", section.title))
                .label(access.span.clone(), "makes it an access port")
                .label(trunk.span.clone(), "makes it a trunk")
                .help("keep one; the VLAN of a trunk's untagged frames is `native`"),
        );
    }
    if let Some(native) = &native
        && !section.has("trunk")
    {
        problems.push(
            Problem::new(format!("`{}` has `native` without `trunk`", section.title))
                .label(native.span.clone(), "belongs to a trunk")
                .help("add `trunk`, or use `vlan` for an access port"),
        );
    }
    if let Some(network) = network {
        return VlanMode::Network(network.value);
    }
    match (access, trunk) {
        (Some(access), _) => VlanMode::Access(access.value),
        (None, Some(trunk)) => {
            VlanMode::Trunk { allowed: trunk.value, native: native.map(|native| native.value) }
        }
        (None, None) => VlanMode::Unset,
    }
}
