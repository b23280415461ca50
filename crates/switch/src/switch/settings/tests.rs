use weir_config::{Config, Defaults};

use super::*;

fn config(text: &str) -> Config {
    let control = "/run/weir/control.sock".parse().unwrap();
    let defaults = Defaults { control, control_named: true, keeper: None };
    Config::from_toml("weir.toml", text, &defaults).unwrap()
}

/// The settings that a weir with the first file notes after it has been changed to the second.
fn noted(file: &Config, now: &Config) -> Noted {
    let mut noted = Noted::default();
    for (file, now) in file.vifs.iter().zip(&now.vifs) {
        let settings = Settings::between(file, now).unwrap();
        noted.settings.insert(now.name.to_string(), settings);
    }
    for (file, now) in file.uplinks.iter().zip(&now.uplinks) {
        let settings = Settings::between(file, now).unwrap();
        noted.settings.insert(now.name.to_string(), settings);
    }
    noted
}

fn held(wanted: &Wanted) -> Vec<&str> {
    wanted.held.iter().map(|held| held.port.as_str()).collect()
}

const RULE: &str = "filter = [{ direction = \"tx\", action = \"drop\" }]\n";

#[test]
fn what_was_set_of_interfaces_and_uplinks_holds_and_their_other_keys_are_the_files() {
    let file = config("[vif.a]\nqueues = 2\n[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n");
    let lan = "[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\nvlan = 7\nweight = 3\n";
    let set = format!("{lan}{RULE}rss_rebalance = false\n[vif.a]\nqueues = 2\nvlan = 5\n{RULE}");
    let now = config(&format!("[switch]\nschedule = \"drr\"\n{set}"));
    let noted = noted(&file, &now);
    let later = "[switch]\nschedule = \"drr\"\n[vif.a]\nqueues = 4\ntrunk = [3]\n\
                 [uplink.lan]\nkind = \"tap\"\nname = \"t0\"\nvlan = 8\n";
    let wanted = Wanted::of(&config(later), &noted);
    assert_eq!((held(&wanted), &wanted.uplinks), (vec![], &now.uplinks));
    assert_eq!(wanted.vifs[0].queues.get(), 4);
    assert_eq!(
        (&wanted.vifs[0].vlan, &wanted.vifs[0].filter),
        (&now.vifs[0].vlan, &now.vifs[0].filter)
    );
}

#[test]
fn each_key_that_was_set_is_named_as_the_file_names_it() {
    let file = config("[vif.a]\n[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n");
    let keys = [
        ("addresses", "[\"192.0.2.7\"]"),
        ("broadcasts_per_second", "9"),
        ("groups", "[\"web\"]"),
        ("rate", "\"1Gbit\""),
        ("rx_packet_burst", "700"),
        ("rx_packets_per_second", "7000"),
        ("source_guard", "\"configured\""),
        ("vlan", "5"),
    ];
    let lines: String = keys.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    let lan = "[uplink.lan]\nkind = \"tap\"\nname = \"t1\"\nmtu = 1400\n[group.web]\n";
    let noted = noted(&file, &config(&format!("[vif.a]\n{lines}{lan}")));
    let of = |port: &str| {
        let mut of: Vec<_> = noted.settings[port].keys().collect();
        of.sort_unstable();
        of
    };
    assert_eq!(of("a"), keys.map(|(key, _)| key));
    assert_eq!(of("lan"), ["mtu", "name"]);
}

#[test]
fn rules_that_were_taken_away_stay_away() {
    let file = config(&format!("[vif.a]\nmac = \"02:00:00:00:00:01\"\n{RULE}"));
    let now = config("[vif.a]\n");
    let wanted = Wanted::of(&file, &noted(&file, &now));
    assert_eq!(wanted.vifs, now.vifs);
}

#[test]
fn a_port_with_a_setting_that_this_weir_does_not_know_drops_all_frames() {
    let file = config("[vif.a]\n[vif.b]\n[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n");
    let unknown = [("later".to_owned(), Value::from(7))];
    let unknown = Settings(unknown.into());
    let of = |port: &str| (port.to_owned(), unknown.clone());
    let noted = Noted { settings: [of("a"), of("lan")].into(), ..Noted::default() };
    let wanted = Wanted::of(&file, &noted);
    assert_eq!(held(&wanted), ["lan", "a"]);
    let (vif, uplink) = (&wanted.vifs[0], &wanted.uplinks[0]);
    assert_eq!((&vif.filter, &uplink.filter), (&nothing(), &nothing()));
    assert_eq!(wanted.vifs[1], file.vifs[1]);
}

#[test]
fn an_address_that_another_interface_has_meanwhile_closes_the_one_that_it_was_set_of() {
    let file = config("[vif.a]\n[vif.b]\n");
    let now = config("[vif.a]\nmac = \"02:00:00:00:00:01\"\n[vif.b]\n");
    let later = config("[vif.a]\n[vif.b]\nmac = \"02:00:00:00:00:01\"\n");
    let wanted = Wanted::of(&later, &noted(&file, &now));
    assert_eq!(held(&wanted), ["a"]);
    assert_eq!(wanted.vifs[0].filter, nothing());
    assert_eq!(wanted.vifs[1], later.vifs[1]);
}

#[test]
fn what_was_removed_stays_away_and_what_was_added_is_not_what_a_file_says_since() {
    let file = config("[vif.a]\n[vif.late]\n[uplink.lan]\nkind = \"tap\"\nname = \"t0\"\n");
    let late = config(&format!("[vif.late]\nsocket = \"/run/late.sock\"\n{RULE}")).vifs.remove(0);
    let noted = Noted {
        added: vec![serde_json::to_value(&late).unwrap()],
        deleted: ["a".to_owned(), "lan".to_owned()].into(),
        ..Noted::default()
    };
    let wanted = Wanted::of(&file, &noted);
    assert_eq!((&wanted.vifs, &wanted.added), (&vec![], &vec![late]));
    assert_eq!((held(&wanted), &wanted.uplinks[0].filter), (vec!["lan"], &nothing()));
}

#[test]
fn what_was_added_and_cannot_be_read_closes_the_interface_that_a_file_calls_so() {
    let file = config("[vif.late]\n");
    let added = vec![serde_json::json!({"name": "late", "later": 7})];
    let wanted = Wanted::of(&file, &Noted { added, ..Noted::default() });
    assert_eq!((held(&wanted), &wanted.vifs[0].filter), (vec!["late"], &nothing()));
}
