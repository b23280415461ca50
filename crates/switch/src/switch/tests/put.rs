//! Interfaces that are requested to exist with given settings.

use super::*;
use crate::control::{Put, PutOutcome, VifOrigin};

impl Bench {
    pub(super) fn config(&self, vif: &str, settings: &str) -> VifConfig {
        let settings: Vec<Setting> =
            settings.split_whitespace().map(|it| it.parse().unwrap()).collect();
        let control = SocketPath::try_from(self.dir.path().join("control.sock").as_path()).unwrap();
        VifConfig::from_settings(&name(vif), &settings, &control).unwrap()
    }

    pub(super) fn put(&self, config: VifConfig) -> Response {
        self.switch.handle(Request::VifPut { config: config.into() })
    }

    fn puts(&self, vif: &str, settings: &str) -> (PutOutcome, Vec<String>) {
        match self.put(self.config(vif, settings)) {
            Response::Put { put: Put { outcome, changed, .. } } => (outcome, changed),
            other => panic!("{other:?}"),
        }
    }

    fn listed(&self, vif: &str) -> VifStatus {
        let Response::Vifs { vifs } = self.switch.handle(Request::VifList) else {
            panic!("a list")
        };
        vifs.into_iter().find(|it| it.config.name.as_str() == vif).unwrap()
    }
}

pub(super) fn refusal(response: Response) -> String {
    match response {
        Response::Error { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_interface_is_added_once_changed_where_it_differs_and_otherwise_left_alone() {
    let bench = Bench::new();
    let settings = "by=libvirt:7 queues=2 rate=1Gbit";
    assert_eq!(bench.puts("late", settings).0, PutOutcome::Added);
    let (_late, pairs) = bench.guest("late", 9, 2);
    let kept = || assert_eq!(bench.numbers("late").in_use, pairs.len(), "its guest stays");
    assert_eq!(bench.puts("late", settings), (PutOutcome::Unchanged, vec![]));
    let changed =
        |keys: &[&str]| (PutOutcome::Changed, keys.iter().map(|it| (*it).into()).collect());
    let others = "by=libvirt:7 queues=2 vlan=7 mtu=1400 memory_max=1GiB isolated=true";
    let keys = ["isolated", "vlan", "mtu", "memory_max", "rate"];
    assert_eq!(bench.puts("late", others), changed(&keys));
    assert_eq!(bench.puts("late", others), (PutOutcome::Unchanged, vec![]));
    let listed = bench.listed("late");
    assert_eq!(listed.config, bench.config("late", others));
    assert_eq!((listed.origin, listed.unsaved), (VifOrigin::Command, vec![]));
    let file = bench.listed("a");
    assert_eq!(file.origin, VifOrigin::File);
    kept();

    // One key cannot change, so nothing changes; the error names each such key.
    let mut elsewhere = bench.config("late", "by=libvirt:8 mode=client queues=2");
    elsewhere.socket = "/elsewhere.sock".parse().unwrap();
    let said = refusal(bench.put(elsewhere));
    for says in [
        "late exists already",
        "by is libvirt:7 and not libvirt:8",
        "mode is server",
        "/elsewhere.sock",
    ] {
        assert!(said.contains(says), "{says}: {said}");
    }
    assert!(!said.contains("rate"), "what could change is not to blame: {said}");
    let nobodys =
        refusal(bench.put(bench.config("late", others.replace("by=libvirt:7", "").trim())));
    assert!(nobodys.contains("by is libvirt:7 and not none"), "{nobodys}");
    // A conflict is refused, as by any other command.
    let mut of_a = bench.config("late", others);
    of_a.mac = Some("52:54:00:00:00:0a".parse().unwrap());
    assert_eq!(bench.set("a", "mac=52:54:00:00:00:0a vlan=7"), Response::Ok);
    assert!(refusal(bench.put(of_a)).contains("is already used by a"));
    let mut mirror = bench.config("late", "by=libvirt:7 queues=2");
    (mirror.vlan, mirror.isolated) =
        (weir_config::VlanMode::Mirror("a".parse().unwrap()), Some(true));
    assert!(refusal(bench.put(mirror)).contains("isolated"));
    assert_eq!(bench.listed("late").config, bench.config("late", others));
    kept();
}

#[test]
fn of_several_who_want_the_same_interface_at_once_one_adds_it() {
    let bench = &Bench::new();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let put = |_| scope.spawn(|| bench.puts("late", "vlan=7").0);
        (0..4).map(put).collect::<Vec<_>>().into_iter().map(|it| it.join().unwrap()).collect()
    });
    let of = |which| outcomes.iter().filter(|outcome| **outcome == which).count();
    assert_eq!((of(PutOutcome::Added), of(PutOutcome::Unchanged)), (1, 3));
}

#[test]
fn rules_that_stay_keep_what_they_have_counted() {
    let bench = Bench::new();
    let (_a, mut a) = bench.guest("a", 1, 1);
    let rules: Vec<FilterRule> = vec!["tx drop ether proto 0x88b5".parse().unwrap()];
    let set = || {
        let rules = rules.clone();
        assert_eq!(
            bench.switch.handle(Request::FilterSet { name: name("a"), rules }),
            Response::Ok
        );
    };
    set();
    send(&mut a[0], [0xff; 6], 1, &[0; 46]);
    eventually("it is dropped", || bench.port("a").drops.get("filtered_tx") == Some(&1));
    let counted = bench.port("a").filter;
    set();
    assert_eq!(bench.port("a").filter, counted);
    assert_ne!(serde_json::to_value(&counted).unwrap()[0]["packets"], 0);
}

#[test]
fn a_reload_changes_the_schedule_with_the_keys_that_belong_to_it_or_neither() {
    use weir_policy::schedule::Kind;

    let bench = Bench::with("[vif.a]\nweight = 3\n");
    let reload = |keys: &str| {
        let text = format!("[switch]\nworkers = 2\n{keys}");
        bench.switch.handle(Request::Reload { text, partly: false })
    };
    let applied = |response: &Response| {
        let Response::Reloaded { outcome, .. } = response else { return false };
        matches!(outcome, crate::control::ReloadOutcome::Applied { .. })
    };
    let dwcs = "schedule = \"dwcs\"\n";
    let stays = reload(&format!("{dwcs}[vif.a]\nweight = 3\n"));
    assert!(!applied(&stays), "a weight has no effect there: {stays:?}");
    assert_eq!(bench.switch.engine.schedule(), Kind::Drr);
    let becomes = reload(&format!("{dwcs}[vif.a]\nwindow = \"1/4\"\nperiod = \"1ms\"\n"));
    assert!(applied(&becomes), "{becomes:?}");
    assert_eq!(bench.switch.engine.schedule(), Kind::Dwcs);
    assert!(matches!(bench.set("a", "weight=2"), Response::Error { .. }));
    // A window that no file names stands against a schedule without windows.
    assert_eq!(bench.puts("late", "window=1/4 period=1ms").0, PutOutcome::Added);
    let stays = reload("[vif.a]\n");
    assert!(matches!(stays, Response::Error { .. }), "{stays:?}");
    assert_eq!(bench.switch.engine.schedule(), Kind::Dwcs);
    bench.switch.handle(Request::VifDel { name: name("late") });
    assert!(applied(&reload("[vif.a]\nweight = 2\n")));
    assert_eq!(bench.switch.engine.schedule(), Kind::Drr);
}
