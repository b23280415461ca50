//! Filters as users write them, and the messages for bad ones.

use super::*;
use crate::tests::{messages, refused};
use crate::{PortName, Setting, VifChanges, VifConfig};

fn rule(text: &str) -> FilterRule {
    text.parse().unwrap()
}

#[test]
fn diagnostic_expression_that_libpcap_does_not_understand() {
    let text = "[vif.web0]\n\n[[vif.web0.filter]]\ndirection = \"tx\"\nmatch = \"tcp prot 25\"\naction = \"drop\"\n";
    insta::assert_snapshot!(refused(text), @r#"
      × weir.toml: 1 problem

    Error:
      × bad value for `vif.web0.filter.match`
       ╭─[weir.toml:5:9]
     4 │ direction = "tx"
     5 │ match = "tcp prot 25"
       ·         ──────┬──────
       ·               ╰── can't parse filter expression: syntax error
     6 │ action = "drop"
       ╰────
      help: pcap-filter(7) says how expressions are written; weir's limits are in its guide
    "#);
}

#[test]
fn diagnostic_filter_table_with_everything_wrong() {
    let text = "[vif.web0]\n[[vif.web0.filter]]\ndirection = \"in\"\nmatch = 80\nmach = \"ip\"\n";
    insta::assert_snapshot!(refused(text), @r#"
      × weir.toml: 4 problems

    Error:
      × `vif.web0.filter` has no `action`
       ╭─[weir.toml:2:1]
     1 │ [vif.web0]
     2 │ [[vif.web0.filter]]
       · ─────────┬─────────
       ·          ╰── needs `action`
     3 │ direction = "in"
       ╰────
      help: add `action = "accept"` or `action = "drop"`

    Error:
      × bad value for `vif.web0.filter.direction`
       ╭─[weir.toml:3:13]
     2 │ [[vif.web0.filter]]
     3 │ direction = "in"
       ·             ──┬─
       ·               ╰── `in` is not one of `tx`, `rx`
     4 │ match = 80
       ╰────

    Error:
      × bad value for `vif.web0.filter.match`
       ╭─[weir.toml:4:9]
     3 │ direction = "in"
     4 │ match = 80
       ·         ─┬
       ·          ╰── expected an expression in quotes, such as "tcp port 80", found integer
     5 │ mach = "ip"
       ╰────

    Error:
      × unknown key `mach` in `vif.web0.filter`
       ╭─[weir.toml:5:1]
     4 │ match = 80
     5 │ mach = "ip"
       · ──┬─
       ·   ╰── unknown key
       ╰────
      help: did you mean `match`?
    "#);
}

#[test]
fn filter_that_is_no_list_of_tables_is_refused() {
    for text in ["filter = \"tcp\"", "filter = [\"tcp\"]", "[vif.web0.filter]\nmatch = \"tcp\""] {
        let messages = messages(&format!("[vif.web0]\n{text}\n"));
        assert_eq!(messages, ["`vif.web0.filter` is not a list of tables"], "{text}");
    }
}

#[test]
fn more_rules_than_a_port_has_are_refused() {
    let table = "[[vif.web0.filter]]\ndirection = \"tx\"\naction = \"drop\"\n";
    let most = format!("[vif.web0]\n{}", table.repeat(limits::FILTER_RULES_MAX));
    assert!(crate::tests::parse(&most).is_ok());
    assert_eq!(messages(&format!("{most}{table}")), ["`vif.web0` has too much of a filter"]);
}

#[test]
fn no_rule_beyond_the_last_that_fits_is_compiled() {
    // The expression would be a syntax error.
    let wrong = "{\"direction\":\"tx\",\"match\":\"no such thing\",\"action\":\"drop\"}";
    let good = wrong.replace("no such thing", "arp");
    let list = |last: &str| {
        let rules = vec![good.as_str(); limits::FILTER_RULES_MAX - 1];
        format!("[{},{last}]", rules.join(","))
    };
    let read = |text: &str| serde_json::from_str::<crate::FilterRules>(text);
    assert_eq!(read(&list(&good)).unwrap().0.len(), limits::FILTER_RULES_MAX);
    assert!(read(&list(wrong)).unwrap_err().to_string().contains("syntax error"));
    let refused = read(&list(&format!("{good},{wrong}"))).unwrap_err().to_string();
    assert!(refused.contains("a port has more than 32 filter rules"), "{refused}");
    // The same bound holds for a whole interface in one request.
    let mut vif =
        serde_json::to_value(&crate::tests::parse("[vif.web0]").unwrap().vifs[0]).unwrap();
    vif["filter"] = serde_json::from_str(&list(&format!("{good},{wrong}"))).unwrap();
    let refused = serde_json::from_value::<crate::VifConfig>(vif).unwrap_err().to_string();
    assert!(refused.contains("a port has more than 32 filter rules"), "{refused}");
    // The same bound holds in a file.
    let table = "[[vif.web0.filter]]\ndirection = \"tx\"\naction = \"drop\"\n";
    let many = table.repeat(limits::FILTER_RULES_MAX);
    let text = format!("[vif.web0]\n{many}{table}match = \"no such thing\"\n");
    assert_eq!(messages(&text), ["`vif.web0` has too much of a filter"]);
}

#[test]
fn rules_are_written_as_they_are_read() {
    for text in ["tx drop", "rx accept arp", "tx accept tcp port 80 and src net 10.0.0.0/8"] {
        assert_eq!(rule(text).to_string(), text);
    }
    assert_eq!(rule("  rx\tdrop  ip  or   arp "), rule("rx drop ip or arp"));
    for (text, words) in [
        ("", "`` is not a rule"),
        ("drop", "`drop` is not a rule"),
        ("in drop", "`in` is not one of `tx`, `rx`"),
        ("tx reject ip", "`reject` is not one of `accept`, `drop`"),
        ("tx drop no such thing", "syntax error"),
    ] {
        let error = text.parse::<FilterRule>().unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn rules_survive_json_and_json_is_checked_as_text_is() {
    let json = r#"{"direction":"tx","match":"tcp port 25","action":"drop"}"#;
    assert_eq!(serde_json::to_string(&rule("tx drop tcp port 25")).unwrap(), json);
    assert_eq!(serde_json::from_str::<FilterRule>(json).unwrap(), rule("tx drop tcp port 25"));
    for bad in [json.replace("tcp port", "tcp prot"), json.replace("match", "mach")] {
        assert!(serde_json::from_str::<FilterRule>(&bad).is_err(), "{bad}");
    }
}

#[test]
fn rules_go_to_their_directions_in_their_order() {
    let rules = port_rules(&["tx drop ip", "rx accept arp", "tx accept"].map(rule)).unwrap();
    let actions = |rules: &Option<Arc<Rules>>| {
        rules.as_ref().map(|rules| rules.iter().map(|rule| rule.action).collect::<Vec<_>>())
    };
    assert_eq!(actions(&rules.tx), Some(vec![Action::Drop, Action::Accept]));
    assert_eq!(actions(&rules.rx), Some(vec![Action::Accept]));
    let none = port_rules(&[]).unwrap();
    assert!(none.tx.is_none() && none.rx.is_none(), "costs nothing");
}

#[test]
fn filters_can_be_given_to_a_new_interface_and_not_as_a_setting_of_one_in_use() {
    let name: PortName = "web0".parse().unwrap();
    let settings: [Setting; 1] =
        [r#"filter=[{direction="rx", action="drop", match="stp"}]"#.parse().unwrap()];
    let control = "/run/weir/control.sock".parse().unwrap();
    let vif = VifConfig::from_settings(&name, &settings, &control).unwrap();
    assert_eq!(vif.filter, [rule("rx drop stp")]);
    let error = VifChanges::from_settings(&name, &settings).unwrap_err();
    assert_eq!(error.problems()[0].message, "filters have a command of their own");
}
