use super::super::{Config, Defaults};
use super::*;

fn read(text: &str) -> Result<Config, String> {
    let defaults = Defaults::of_user(true, None).unwrap();
    Config::from_toml("weir.toml", text, &defaults)
        .map_err(|error| format!("{:?}", miette::Report::new(error)))
}

#[test]
fn groups_are_read_and_shown_as_they_are_written() {
    let text = "[group.lb]\n[group.web]\ndefault_out = \"deny\"\nrules = [\n\
        { direction = \"in\", protocol = \"tcp\", ports = \"80, 443,8000-8100\", from = \"group:lb\" },\n\
        { direction = \"in\", protocol = \"icmp\", types = 8, from = \"10.0.0.0/8\" },\n\
        { direction = \"out\" },\n\
        { direction = \"out\", protocol = 47, to = \"fd00::5\" },\n\
        ]\n[vif.web0]\ngroups = [\"web\"]\n";
    let config = read(text).unwrap();
    let web = config.groups.get(&"web".parse().unwrap()).unwrap();
    let shown: Vec<_> = web.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "in tcp 80,443,8000-8100 from group:lb",
            "in icmp 8 from 10.0.0.0/8",
            "out any to any",
            "out 47 to fd00::5"
        ]
    );
    assert_eq!((web.default_in, web.default_out), (GroupDefault::Deny, GroupDefault::Deny));
    assert_eq!(config.vifs[0].groups.to_string(), "web");
}

#[test]
fn what_groups_allow_adds_up_and_one_that_closes_a_direction_closes_it() {
    let text = "[group.open]\ndefault_in = \"allow\"\n\
        [group.web]\nrules = [{ direction = \"in\", protocol = \"tcp\", ports = \"80\" }]\n\
        [group.ssh]\nrules = [{ direction = \"in\", protocol = \"tcp\", ports = \"22\" }]\n";
    let groups = read(text).unwrap().groups;
    let of = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        VifGroups::try_from(names).unwrap()
    };
    assert_eq!(groups.policy(&of(&[])), None);
    let policy = groups.policy(&of(&["open"])).unwrap();
    assert!(policy.allow_in && policy.allow_out);
    let both = of(&["ssh", "open", "web"]);
    let policy = groups.policy(&both).unwrap();
    assert!(!policy.allow_in && policy.allow_out);
    let ports: Vec<_> = policy.rules.iter().map(|rule| rule.values[0].0).collect();
    assert_eq!(ports, [22, 80]);
    let (group, number, rule) = groups.rule_at(&both, 1).unwrap();
    assert_eq!(
        (group.name.as_str(), number, rule.to_string().as_str()),
        ("web", 0, "in tcp 80 from any")
    );
    let unknown = groups.policy(&of(&["nobody", "open"])).unwrap();
    assert!(
        !unknown.allow_in && !unknown.allow_out,
        "a group that is not there lets nothing through"
    );
}

#[test]
fn a_rule_is_read_as_it_is_shown() {
    for (text, shown) in [
        ("in", "in any from any"),
        ("out tcp", "out tcp to any"),
        (" in  tcp 80,443,8000-8100 from group:lb ", "in tcp 80,443,8000-8100 from group:lb"),
        ("in icmpv6 128 from fd00::/8", "in icmpv6 128 from fd00::/8"),
        ("out 47 to 10.0.0.5", "out 47 to 10.0.0.5"),
        ("in from 10.0.0.0/8", "in any from 10.0.0.0/8"),
    ] {
        let rule: GroupRule = text.parse().unwrap();
        assert_eq!(rule.to_string(), shown);
        assert_eq!(shown.parse(), Ok(rule));
    }
    for text in [
        "",
        "tcp 80",
        "in any 80",
        "in 47 80",
        "in tcp 80 to any",
        "in tcp 80 from",
        "in tcp 80 90",
    ] {
        assert!(text.parse::<GroupRule>().is_err(), "{text}");
    }
}

#[test]
fn what_does_not_fit_is_shown_with_its_place() {
    let rule = |text: &str| format!("[group.a]\nrules = [{{ direction = \"in\", {text} }}]\n");
    for (text, says) in [
        ("[vif.a]\ngroups = [\"web\"]\n".to_owned(), "there is no group web"),
        ("[xen]\ngroups = [\"web\"]\n".to_owned(), "there is no group web"),
        ("[vif.a]\ngroups = []\n".to_owned(), "0 groups"),
        ("[vif.a]\ngroups = 1\n".to_owned(), "groups in brackets"),
        ("[group.A]\n".to_owned(), "bad name of a group"),
        ("[group.a]\ndefault_in = \"drop\"\n".to_owned(), "deny"),
        ("[group.a]\nrules = [{ protocol = \"tcp\" }]\n".to_owned(), "has no `direction`"),
        (
            "[group.a]\nrules = [{ direction = \"out\" }]\n".to_owned(),
            "add `default_out = \"deny\"`",
        ),
        (rule("protocol = \"ip\""), "a protocol: tcp, udp"),
        (rule("ports = \"80\""), "protocol any has no ports"),
        (rule("protocol = \"icmp\", ports = \"80\""), "add `protocol = \"tcp\"`"),
        (rule("protocol = \"tcp\", ports = \"90-80\""), "numbers and ranges"),
        (rule("protocol = \"tcp\", ports = \"65536\""), "numbers and ranges"),
        (rule("to = \"any\""), "`to` is of the other direction"),
        (rule("from = \"group:b\""), "`group.a.rules`: there is no group b"),
        (rule("from = \"10.0.0.5/24\""), "10.0.0.0/24"),
        (rule("from = \"b\""), "\"group:NAME\""),
        (rule("port = 80"), "did you mean `ports`?"),
        (
            "[vif.a]\nmirror = [\"b\"]\ngroups = [\"c\"]\n[vif.b]\n[group.c]\n".to_owned(),
            "does not hold for copies",
        ),
    ] {
        let shown = read(&text).unwrap_err();
        assert!(shown.contains(says), "{text}: {shown}");
    }
}

#[test]
fn a_set_of_groups_has_the_id_that_the_file_says_in_any_order() {
    let text = "[group.web]\n[group.ssh]\n[group.lb]\n[group-ids]\n17 = [\"web\"]\n\
        65535 = [\"ssh\", \"web\", \"ssh\"]\n";
    let groups = read(text).unwrap().groups;
    let id = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        groups.policy(&VifGroups::try_from(names).unwrap()).unwrap().set_id
    };
    assert_eq!(id(&["web"]), 17);
    assert_eq!([id(&["web", "ssh"]), id(&["ssh", "web"])], [65535; 2]);
    assert_eq!([id(&["lb"]), id(&["ssh"]), id(&["web", "lb"]), id(&["web", "ssh", "lb"])], [0; 4]);
}

#[test]
fn an_id_that_is_no_number_or_names_nothing_clear_is_refused() {
    let many: String =
        (1..=limits::GROUP_IDS_MAX + 1).map(|id| format!("{id} = \"g{id}\"\n")).collect();
    for (ids, expected) in [
        ("0 = [\"web\"]", "1 to 65535"),
        ("65536 = [\"web\"]", "1 to 65535"),
        ("017 = [\"web\"]", "1 to 65535"),
        ("\"+17\" = [\"web\"]", "1 to 65535"),
        ("web = 17", "1 to 65535"),
        ("17 = []", "1 to 8"),
        ("17 = 3", "groups in brackets"),
        ("17 = [\"nobody\"]", "there is no group nobody"),
        ("17 = [\"web\", \"ssh\"]\n18 = [\"ssh\", \"web\"]", "have the same groups"),
        ("17 = [\"web\"]\n17 = [\"ssh\"]", "duplicate key"),
        (&*many, "0 to 128"),
    ] {
        let error = read(&format!("[group.web]\n[group.ssh]\n[group-ids]\n{ids}\n")).unwrap_err();
        assert!(error.contains(expected), "{ids}: {error}");
    }
    let error = read("group-ids = 7\n").unwrap_err();
    assert!(error.contains("a table of IDs"), "{error}");
}
