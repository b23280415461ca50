//! Interfaces that are requested to exist with given settings.

use super::*;
use crate::control::{Extent, Part, Put, PutOutcome, VifOrigin};
use weir_limits::{CONTROL_PORTS_MAX, CONTROL_PORTS_TOGETHER_MAX, PORTS_MAX};

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
        let Response::Vifs { vifs, .. } = self.switch.handle(Request::VifList(Part::default()))
        else {
            panic!("a list")
        };
        vifs.into_iter().find(|it| it.config.name.as_str() == vif).unwrap()
    }
}

#[test]
fn ports_come_in_parts_by_name() {
    let bench = Bench::with("[vif.b]\n[vif.c]\n[vif.a]\n");
    let part = |after: Option<&str>, limit| Part { after: after.map(name), limit };
    let vifs = |part| match bench.switch.handle(Request::VifList(part)) {
        Response::Vifs { vifs, total: 3 } => {
            vifs.into_iter().map(|it| it.config.name.to_string()).collect::<String>()
        }
        other => panic!("{other:?}"),
    };
    for (after, limit, expected) in [
        (None, 2, "ab"),
        (Some("b"), 2, "c"),
        (Some("c"), 2, ""),
        // The last interface may have been removed meanwhile.
        (Some("aa"), usize::MAX, "bc"),
        (None, 0, "a"),
    ] {
        assert_eq!(vifs(part(after, limit)), expected);
    }
    let many = (0..PORTS_MAX).map(|n| name(&format!("p{n:04}"))).collect();
    let (some, total) = Part::default().of(many, |it| it);
    assert_eq!((some.len(), total), (CONTROL_PORTS_MAX, PORTS_MAX));
}

/// Whoever asks for the counters, or for a part of the interfaces, waits for the keys of a few.
#[test]
fn of_many_changed_interfaces_the_first_have_their_keys_and_each_has_them_in_its_part() {
    const MORE: usize = 3;
    let all: Vec<_> = (0..CONTROL_PORTS_TOGETHER_MAX + MORE).map(|n| format!("v{n:02}")).collect();
    let bench = Bench::with(&all.iter().map(|vif| format!("[vif.{vif}]\n")).collect::<String>());
    assert_eq!(bench.switch.unsaved(), Vec::<String>::new());
    for vif in &all {
        assert!(matches!(bench.set(vif, "mtu=1400"), Response::Ok | Response::Noted { .. }));
    }
    bench.switch.handle(Request::VifAdd { config: bench.config("late", "").into() });
    let (first, others) = all.split_at(CONTROL_PORTS_TOGETHER_MAX);
    let first = first.iter().map(|vif| format!("vif.{vif}.mtu"));
    let others = others.iter().map(|vif| format!("vif.{vif} (changed)"));
    let late = ["vif.late (added)".to_owned()];
    assert_eq!(bench.switch.unsaved(), first.chain(others).chain(late).collect::<Vec<_>>());
    assert_eq!(bench.listed(&all[0]).unsaved, ["mtu"]);
    assert_eq!(bench.listed(&all[CONTROL_PORTS_TOGETHER_MAX]).unsaved, ["mtu"]);
    assert_eq!(bench.listed("late").unsaved, ["added"]);
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
        bench.switch.handle(Request::Reload { text, extent: Extent::Whole })
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
    // A window that no file names conflicts with a schedule without windows.
    assert_eq!(bench.puts("late", "window=1/4 period=1ms").0, PutOutcome::Added);
    let stays = reload("[vif.a]\n");
    assert!(matches!(stays, Response::Error { .. }), "{stays:?}");
    assert_eq!(bench.switch.engine.schedule(), Kind::Dwcs);
    bench.switch.handle(Request::VifDel { name: name("late") });
    assert!(applied(&reload("[vif.a]\nweight = 2\n")));
    assert_eq!(bench.switch.engine.schedule(), Kind::Drr);
}

#[test]
fn a_setting_that_comes_while_the_file_is_saved_goes_on_and_is_told() {
    let bench = Bench::with("[vif.a]\n[vif.b]\n");
    let set = |name: &str| {
        let said = bench.set(name, "mtu=1400");
        assert!(matches!(said, Response::Noted { .. }), "{said:?}");
    };
    let file = "[switch]\nworkers = 2\n[vif.a]\n[vif.b]\n".to_owned();
    let saved = || match bench.switch.handle(Request::Saved { text: file.clone() }) {
        Response::Text { text } => text,
        other => panic!("{other:?}"),
    };
    let notes = |text| match bench.switch.handle(Request::Reload { text, extent: Extent::Nothing })
    {
        Response::Reloaded { outcome, .. } => outcome,
        other => panic!("{other:?}"),
    };
    use crate::control::ReloadOutcome::{Applied, Refused};
    set("a");
    let before = saved();
    set("b");
    assert_eq!(notes(before), Refused, "what was set meanwhile is not taken back");
    assert_eq!(bench.listed("b").config.mtu, bench.listed("a").config.mtu);
    assert!(bench.listed("b").config.mtu.is_some());
    assert!(matches!(notes(saved()), Applied { .. }));
    assert_eq!(notes(file.clone()), Refused);
}

/// A switch with interfaces on demand, and the directory in which their monitors listen.
struct Demand {
    bench: Bench,
    vms: std::path::PathBuf,
    pattern: String,
}

impl Demand {
    const PORTS: &str = "[template.tenant]\nvlan = 7\n[vif.vm-own]\n[vif.b]\nvlan = 7\n";

    fn new(keys: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vms = dir.path().join("vms");
        std::fs::create_dir(&vms).unwrap();
        let pattern = format!(
            "[vif-on-demand.\"vm-*\"]\ndirectory = {vms:?}\ntemplate = \"tenant\"\n{keys}\n"
        );
        let bench = Bench::within(dir, &format!("{}{pattern}", Self::PORTS));
        Self { bench, vms, pattern }
    }

    fn listen(&self, name: &str) -> std::os::unix::net::UnixListener {
        std::os::unix::net::UnixListener::bind(self.vms.join(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let Response::Vifs { vifs, .. } =
            self.bench.switch.handle(Request::VifList(Part::default()))
        else {
            panic!("a list")
        };
        let on_demand = vifs.iter().filter(|vif| vif.config.by.is_some());
        let mut names: Vec<_> = on_demand.map(|vif| vif.config.name.to_string()).collect();
        names.sort();
        names
    }

    fn has(&self, names: &[&str]) {
        eventually(&format!("{names:?}"), || self.names() == names);
    }

    fn stats(&self) -> crate::stats::OnDemandStats {
        self.bench.switch.stats().on_demand.pop().unwrap_or_default()
    }

    fn refuses(&self, says: &str) {
        eventually(says, || self.stats().refused.iter().any(|it| it.contains(says)));
    }

    fn reload(&self, tables: &str) -> Response {
        let text = format!("[switch]\nworkers = 2\n{tables}");
        self.bench.switch.handle(Request::Reload { text, extent: Extent::Whole })
    }
}

#[test]
fn an_interface_on_demand_comes_with_its_monitors_socket_and_goes_with_it() {
    let on = Demand::new("");
    let begun = Instant::now();
    let monitor = on.listen("vm-1.sock");
    let mut guest = Guest::accept(&monitor, &VifOptions::new(Mac(mac(1)))).unwrap();
    let mut pairs = guest.queue_pairs();
    eventually("it runs", || on.bench.numbers("vm-1").in_use == 1);
    println!("socket to running: {:?}", begun.elapsed());
    let vif = on.bench.listed("vm-1");
    assert_eq!(vif.config.by.unwrap().to_string(), "on-demand:vm-*");
    assert_eq!(vif.config.vlan, config::VlanMode::Access(7.try_into().unwrap()));
    assert_eq!((vif.origin, vif.unsaved), (VifOrigin::Command, vec![]));
    let (_other, mut other) = on.bench.guest("b", 2, 1);
    send(&mut pairs[0], [0xff; 6], 1, b"hello");
    let mut got = Vec::new();
    eventually("its frames arrive", || {
        other[0].recv_into(&mut got).is_some() && got.ends_with(b"hello")
    });

    // A file that fits no pattern or is no socket gets no interface, and a configured interface keeps its name.
    std::fs::write(on.vms.join("vm-2.sock"), "").unwrap();
    std::os::unix::fs::symlink(on.vms.join("vm-1.sock"), on.vms.join("vm-3.sock")).unwrap();
    let _others = ["vm-own.sock", "vm-UPPER.sock", "vm-4", "web.sock"].map(|it| on.listen(it));
    on.refuses("vm-2.sock is not a socket");
    on.refuses("vm-3.sock is not a socket");
    on.refuses("vm-own: an interface called vm-own exists already");
    on.refuses("`vm-UPPER` cannot be the name of a port");
    // Nobody must find the socket while the program still has it open.
    let elsewhere = on.bench.dir.path().join("vm-0.sock");
    drop(std::os::unix::net::UnixListener::bind(&elsewhere).unwrap());
    std::fs::rename(elsewhere, on.vms.join("vm-0.sock")).unwrap();
    on.refuses("vm-0: no program has its socket open");
    let stats = on.stats();
    assert_eq!((stats.refused_total, stats.interfaces), (5, crate::stats::Limit::new(1, 16)));
    assert_eq!((on.names(), stats.error), (vec!["vm-1".to_owned()], None));
    let mut of_pattern = on.bench.config("evil", "by=on-demand:vm-*");
    of_pattern.socket = on.bench.dir.path().join("evil.sock").as_path().try_into().unwrap();
    assert!(refusal(on.bench.put(of_pattern)).contains("come with a monitor's socket"));

    drop((guest, pairs, monitor));
    assert_eq!(on.names(), ["vm-1"], "its socket is there");
    std::fs::remove_file(on.vms.join("vm-1.sock")).unwrap();
    on.has(&[]);

    // The directory is removed with a socket in it, and made again.
    let _gone = on.listen("vm-5.sock");
    on.has(&["vm-5"]);
    std::fs::rename(&on.vms, on.vms.with_extension("aside")).unwrap();
    on.has(&[]);
    eventually("it is told", || on.stats().error.is_some());
    std::fs::create_dir(&on.vms).unwrap();
    eventually("the new one is watched", || on.stats().error.is_none());
    let _back = on.listen("vm-6.sock");
    on.has(&["vm-6"]);
}

#[test]
fn a_monitor_that_is_away_or_says_nothing_is_forgotten_and_has_no_place_for_ever() {
    let on = Demand::new("max = 2\nforget_s = 1");
    // The first two sockets take all places, and their monitors never answer.
    let silent = ["vm-a.sock", "vm-b.sock"].map(|it| on.listen(it));
    on.has(&["vm-a", "vm-b"]);
    // The newest waiting socket is next, whatever its name. File systems give ages to within some
    // milliseconds.
    let waits = on.listen("vm-b2.sock");
    std::thread::sleep(Duration::from_millis(30));
    let monitor = on.listen("vm-c.sock");
    on.refuses("vm-c: there are 2 interfaces already");
    let guest = Guest::accept(&monitor, &VifOptions::new(Mac(mac(1)))).unwrap();
    on.refuses("its monitor was away for 1 s");
    std::thread::sleep(Duration::from_millis(2500));
    assert!(on.names().contains(&"vm-c".to_owned()), "who has spoken stays");
    // The guest's monitor ends without removing its socket. After a while another interface gets its place.
    drop((guest, monitor));
    on.refuses("vm-c: no program has its socket open");
    // Another socket of that name is another monitor.
    std::fs::remove_file(on.vms.join("vm-c.sock")).unwrap();
    drop((silent, waits));
    for name in ["vm-a.sock", "vm-b.sock", "vm-b2.sock"] {
        std::fs::remove_file(on.vms.join(name)).unwrap();
    }
    let monitor = on.listen("vm-c.sock");
    let _guest = Guest::accept(&monitor, &VifOptions::new(Mac(mac(1)))).unwrap();
    on.has(&["vm-c"]);
}

#[test]
fn a_reload_takes_interfaces_on_demand_away_with_their_pattern_and_brings_them_again() {
    let on = Demand::new("");
    let _monitors = ["vm-1.sock", "vm-2.sock"].map(|it| on.listen(it));
    on.has(&["vm-1", "vm-2"]);
    let all = format!("{}{}", Demand::PORTS, on.pattern);
    let applied = |response: Response| {
        use crate::control::ReloadOutcome::Applied;
        assert!(
            matches!(&response, Response::Reloaded { outcome: Applied { notes }, .. }
            if notes.is_empty()),
            "{response:?}"
        );
    };
    applied(on.reload(&all));
    assert_eq!(on.names(), ["vm-1", "vm-2"]);
    // An interface of the file has the name.
    applied(on.reload(&format!("{all}[vif.vm-1]\n")));
    assert_eq!(on.names(), ["vm-2"]);
    assert_eq!(on.bench.listed("vm-1").origin, VifOrigin::File);
    applied(on.reload(&all));
    on.has(&["vm-1", "vm-2"]);
    // A step of this change fails, so nothing is removed.
    let fails = format!("{}[vif.late]\nsocket = \"/proc/none/late.sock\"\n", Demand::PORTS);
    let undone = on.reload(&fails);
    assert!(
        !matches!(
            &undone,
            Response::Reloaded { outcome: crate::control::ReloadOutcome::Applied { .. }, .. }
        ),
        "{undone:?}"
    );
    on.has(&["vm-1", "vm-2"]);
    applied(on.reload(Demand::PORTS));
    assert_eq!((on.names().len(), on.bench.switch.templates().on_demand.len()), (0, 0));
    eventually("nothing is told of it", || on.bench.switch.stats().on_demand.is_empty());
    applied(on.reload(&all));
    on.has(&["vm-1", "vm-2"]);
}
