use super::*;
use crate::overlay::NetworkKeys;
use crate::tests::{messages, parse, refused};
use crate::{BondMode, LacpRate, OverlayConfig, SwitchConfig, UplinkConfig, VifConfig, XenConfig};

const GUIDE: &str = include_str!("../../../../docs/guide/configuration.md");
const TWO_HOSTS: &str = include_str!("../../../../docs/guide/two-hosts.md");
const XEN: &str = include_str!("../../../../docs/guide/xen.md");

/// Keys of the guide's section on a table, each with its values and its default.
fn guide(table: &str) -> Vec<(String, String, String)> {
    let (_, section) = GUIDE.split_once(&format!("\n## `[{table}]`\n")).unwrap();
    let end = ["\n## ", "\n### "].iter().filter_map(|next| section.find(next)).min();
    let section = section[..end.unwrap()].replace(",384", "384").replace(",048,576", "048576");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    let keys = cells.filter(|cells| cells.len() >= 3).flat_map(|cells| {
        let names = cells[0].split(',').map(|name| name.trim().trim_matches('`').to_owned());
        let (values, default) = (cells[1].to_owned(), cells[2].to_owned());
        names.map(move |name| (name, values.clone(), default.clone()))
    });
    keys.collect()
}

/// The bounds of a value, from the messages for bad values.
fn bounds(table: &str, key: &str) -> Vec<String> {
    let mut bounds = Vec::new();
    for value in ["99999999999999", "\"99999999TiB\"", "\"99999999Gbit\"", "\"none of these\""] {
        let text = format!("[{}]\n{key} = {value}\n", table.replace("NAME", "x"));
        if parse(&text).is_ok() {
            continue;
        }
        let text = refused(&text);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let within =
            [" must be ", " is not within "].iter().find_map(|words| text.split_once(words));
        if let Some((_, rest)) = within {
            let mut words = rest.split(' ');
            let (min, to, max) = (words.next(), words.next(), words.next());
            if let (Some(min), Some("to"), Some(max)) = (min, to, max) {
                bounds.extend([min.to_owned(), max.trim_end_matches([',', ';']).to_owned()]);
            }
        }
        if let Some((_, choices)) = text.split_once(" is not one of ") {
            let written = |word: &str| match word.parse::<u64>() {
                Ok(_) => word.to_owned(),
                Err(_) => format!("\"{word}\""),
            };
            bounds.extend(choices.split('`').skip(1).step_by(2).map(written));
        }
    }
    bounds
}

fn the_guide_is_right(table: &str, rows: Rows) {
    let guide = guide(table);
    for (name, ..) in &guide {
        let is_key = rows.iter().any(|(key, _)| key.with_others().any(|it| it.name == name));
        assert!(is_key, "no key of [{table}]: {name}");
    }
    let mut bounded = 0;
    for (key, default) in rows {
        // Nobody writes the owner into a file, and the `filter` of uplinks is described with that
        // of interfaces.
        if matches!(key.name, "by" | "filter") {
            continue;
        }
        let row = guide.iter().find(|(name, ..)| name == key.name);
        let (_, values, written) = row.unwrap_or_else(|| panic!("[{table}] lacks {}", key.name));
        assert!(!key.says.is_empty() && !key.says.contains('\n'), "{}", key.name);
        let default =
            default.filter(|_| !matches!(key.name, "socket" | "name" | "kind" | "control"));
        if let Some(default) = default {
            assert!(
                written.trim_matches(['`', '"']) == default,
                "{}: {written}, not {default}",
                key.name
            );
        }
        if values.starts_with("as ") || values.starts_with('[') || values.starts_with("a policy") {
            continue;
        }
        for bound in bounds(table, key.name) {
            bounded += 1;
            assert!(values.contains(&bound), "{}: {values} without {bound}", key.name);
        }
    }
    assert!(bounded > 6, "[{table}]: {bounded}");
}

#[test]
fn the_guide_has_each_key_with_its_default_and_its_bounds() {
    the_guide_is_right("switch", SwitchConfig::default().rows());
    the_guide_is_right("vif.NAME", VifConfig::template().rows());
    let is_bonds = |key: &Key| matches!(key.name, "uplinks" | "mode" | "lacp_rate");
    let (bond, uplink) =
        UplinkConfig::template().rows().into_iter().partition::<Rows, _>(|(key, _)| is_bonds(key));
    the_guide_is_right("uplink.NAME", uplink);
    let patterns = self::guide("vif-on-demand.PATTERN");
    let most = weir_limits::ON_DEMAND_VIFS_MAX;
    let keys = crate::OnDemandKeys::default().rows();
    assert_eq!(patterns.len(), keys.len());
    for ((key, default), (name, values, shown)) in keys.into_iter().zip(patterns) {
        assert_eq!(key.name, name);
        match name.as_str() {
            "directory" => assert_eq!(shown, "required"),
            "template" => assert_eq!((default, shown.as_str()), (None, "none")),
            _ => assert_eq!(default.as_ref(), Some(&shown), "{name}"),
        }
        let bound = match name.as_str() {
            "max" => format!("1 to {most}"),
            "forget_s" => format!("1 to {}", weir_limits::ON_DEMAND_FORGET_SECS_MAX),
            _ => continue,
        };
        assert_eq!(values, bound);
    }
    let guide = guide("bond.NAME");
    for (key, _) in bond {
        let row = guide.iter().find(|(name, ..)| name == key.name);
        let (_, values, _) = row.unwrap_or_else(|| panic!("[bond.NAME] lacks {}", key.name));
        let words = match key.name {
            "mode" => BondMode::WORDS,
            "lacp_rate" => LacpRate::WORDS,
            _ => &[],
        };
        for word in words {
            assert!(values.contains(&format!("\"{word}\"")), "{values}");
        }
    }
}

/// Keys of the table in `page` that begins behind `place`, each with its default.
fn listed(page: &str, place: &str) -> Vec<(String, String)> {
    let (_, behind) = page.split_once(place).unwrap();
    let rows = behind.lines().skip_while(|line| !line.starts_with("| `"));
    let rows = rows.map_while(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    let key = |cells: Vec<&str>| (cells[0].replace('`', ""), cells[2].replace(['`', '"'], ""));
    cells.map(key).collect()
}

#[test]
fn the_guide_lists_the_keys_of_networks_and_of_xen_with_their_defaults() {
    let (overlay, network) =
        TWO_HOSTS.split_once("## Keys").unwrap().1.split_once("`[network.NAME]`").unwrap();
    let services = listed(GUIDE, "## `[overlay]` and `[network.NAME]`");
    let network = [listed(network, "|---|"), services].concat();
    let xen = listed(XEN, "## `[xen]`");
    let of_all = VifConfig::template().rows();
    let own =
        |rows: Rows| rows.into_iter().filter(|it| of_all.iter().all(|of| of.0.name != it.0.name));
    for (listed, rows, is_whole) in [
        (listed(overlay, "|---|"), OverlayConfig::default().rows(), true),
        (network, NetworkKeys::default().rows(), true),
        (xen, own(XenConfig::default().keys()).collect(), false),
    ] {
        assert!(rows.len() >= 3 && (!is_whole || rows.len() == listed.len()), "{listed:?}");
        for (key, default) in rows {
            let row = listed.iter().find(|(name, _)| name == key.name);
            let (_, written) = row.unwrap_or_else(|| panic!("no row of {}", key.name));
            assert!(!key.says.is_empty() && !key.says.contains('\n') && !key.alive, "{}", key.name);
            if let Some(default) = default.filter(|_| key.name != "local") {
                assert!(written.starts_with(&default), "{}: {written}, not {default}", key.name);
            }
        }
    }
}

#[test]
fn each_key_that_can_change_is_one_of_vif_set_and_no_other_is() {
    let name = "web0".parse().unwrap();
    for (key, _) in VifConfig::template().rows() {
        let setting = format!("{}=[[]]", key.name).parse().unwrap();
        let error = crate::VifChanges::from_settings(&name, &[setting]).unwrap_err();
        let message = &error.problems()[0].message;
        let cannot = format!("`{}` cannot change while the interface exists", key.name);
        match key.name {
            "template" => assert!(message.contains("cannot change while"), "{message}"),
            "filter" => assert!(message.contains("a command of their own"), "{message}"),
            _ if key.alive => assert!(message.contains("bad value for"), "{message}"),
            _ => assert_eq!(*message, cannot),
        }
    }
}

#[test]
fn each_key_is_one_of_xen_or_says_what_there_is_instead() {
    for (key, _) in VifConfig::template().rows() {
        let message = messages(&format!("[xen]\n{} = [[]]\n", key.name)).remove(0);
        let cannot = format!("`{}` cannot be said of Xen guests' interfaces", key.name);
        assert_eq!(message == cannot, key.xen.is_some(), "{message}");
        assert!(!message.contains("unknown key"), "{message}");
    }
}
