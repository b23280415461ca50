use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{getegid, geteuid};
use weir_config::{SocketMode, SocketPath};
use weir_foreign::Party;
use weir_limits::{FOREIGN_CLOSES_MAX, HELPER_SOCKETS_TOGETHER_MAX, PORTS_MAX, USER_NAME_LEN_MAX};
use weir_port_gateway::Means;
use weir_testing::slow::{lingering, send_with};

use super::serve::{Given, Serving};
use super::wire::{
    self, Announcement, Answer, FrrDaemon, Made, OwnerAnnouncement, Request, Tasks, WantedSocket,
};
use crate::unix_socket::{Access, Accounts};

fn socket(dir: &Path, name: &str) -> SocketPath {
    SocketPath::try_from(dir.join(name).as_path()).unwrap()
}

/// The user and the group whose names no file of this host has. Only root gives files to others.
fn far() -> (u32, u32) {
    match (geteuid().as_raw(), getegid().as_raw()) {
        (0, _) => (54_321, 54_322),
        own => own,
    }
}

/// A helper of a weir whose control socket is in `dir`.
fn helper(dir: &Path) -> Serving {
    let control = Some(socket(dir, "control.sock"));
    let interfaces = ["eth7".parse().unwrap()].into();
    let config = Some(dir.join("weir.toml"));
    let vnis = [100].into();
    let (user, group) = far();
    Serving::new(Tasks {
        control,
        interfaces,
        pin_vcpus: true,
        config,
        group: None,
        accounts: Accounts {
            users: [("weir-test-far".parse().unwrap(), user)].into(),
            groups: [("weir-test-far".parse().unwrap(), group)].into(),
            ..Accounts::default()
        },
        beside: false,
        allow_links: false,
        client_dir: None,
        on_demand: BTreeSet::new(),
        vnis,
        nat: Vec::new(),
        resolver: None,
    })
}

fn bind(helper: &mut Serving, path: &SocketPath) -> Result<UnixListener, String> {
    match helper.answer(Request::Bind { path: path.clone(), access: SocketMode::OWNER.into() }) {
        (Answer::Bound { .. }, Some(socket)) => Ok(OwnedFd::from(socket).into()),
        (Answer::Refused { message, .. }, None) => Err(message),
        other => panic!("{other:?}"),
    }
}

impl From<Given> for OwnedFd {
    fn from(given: Given) -> Self {
        match given {
            Given::Own(it) => it,
            Given::Foreign(it) => it.release(),
        }
    }
}

fn refusal((answer, descriptor): (Answer, Option<Given>)) -> String {
    assert!(descriptor.is_none());
    match answer {
        Answer::Refused { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sockets_are_made_together_each_by_its_own_right_and_not_too_many() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut helper = helper(dir.path());
    std::fs::write(dir.path().join("taken"), "a file").unwrap();
    let at = |name: &str| socket(dir.path(), name);
    let paths = [at("a.sock"), socket(elsewhere.path(), "b.sock"), at("taken"), at("c.sock")];
    let want =
        |path: &SocketPath| WantedSocket { path: path.clone(), access: SocketMode::OWNER.into() };
    let (mut given, mut bound) = (Vec::new(), Vec::new());
    let answer = helper.bind_all(paths.iter().map(want).collect(), &mut given, &mut bound);
    let Answer::Each { all } = answer else { panic!("{answer:?}") };
    let is_made = |made: &Made| match made {
        Made { bound: Answer::Bound { .. }, records: Some(Answer::Done) } => true,
        Made { bound: Answer::Refused { .. }, records: None } => false,
        other => panic!("{other:?}"),
    };
    assert_eq!(all.iter().map(is_made).collect::<Vec<_>>(), [true, false, false, true]);
    assert_eq!(bound, [at("a.sock"), at("c.sock")]);
    // A socket and its records, twice.
    assert_eq!(given.len(), 4);
    UnixStream::connect(at("c.sock").as_path()).unwrap();
    assert!(dir.path().join("a.sock.rings").exists());
    assert!(!dir.path().join("taken.rings").exists());
    assert!(!dir.path().join(".weir.lock").exists());

    // A file that somebody has removed is made again, and the entry of the old one is dropped.
    std::fs::remove_file(dir.path().join("a.sock")).unwrap();
    let answer = helper.bind_all(vec![want(&at("a.sock"))], &mut given, &mut bound);
    let Answer::Each { all } = answer else { panic!("{answer:?}") };
    assert!(all.iter().all(is_made) && all.len() == 1);
    UnixStream::connect(at("a.sock").as_path()).unwrap();
    given.truncate(4);
    bound.truncate(2);

    let many = vec![want(&at("d.sock")); HELPER_SOCKETS_TOGETHER_MAX + 1];
    let answer = helper.bind_all(many, &mut given, &mut bound);
    assert!(refusal((answer, None)).contains("too many"));
    assert_eq!((given.len(), bound.len()), (4, 2));
}

#[test]
fn no_resolver_is_connected_to_where_no_network_asks_for_names() {
    let dir = tempfile::tempdir().unwrap();
    let refused = refusal(
        helper(dir.path()).answer(Request::ConnectResolver { turn: 0, means: Means::Datagrams }),
    );
    assert!(refused.contains("no network asks"), "{refused}");
}

#[test]
fn the_configurations_file_is_opened_to_be_read_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut helper = helper(dir.path());
    let refused = refusal(helper.answer(Request::OpenConfig));
    assert!(refused.contains("weir.toml: No such file"), "{refused}");
    std::fs::write(dir.path().join("weir.toml"), "[switch]\n").unwrap();
    let (Answer::Done, Some(file)) = helper.answer(Request::OpenConfig) else {
        panic!("it can be opened")
    };
    let mut file = std::fs::File::from(OwnedFd::from(file));
    assert!(std::io::Write::write(&mut file, b"x").is_err());
    let text = weir_config::read_text(file, Path::new("weir.toml")).unwrap();
    assert_eq!(text, "[switch]\n");
    // A file on which a reader could block is refused.
    std::fs::remove_file(dir.path().join("weir.toml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("weir.toml")).unwrap();
    assert!(refusal(helper.answer(Request::OpenConfig)).contains("is not a regular file"));
    // A weir that was started without a file has no file to open.
    let mut none = Serving::new(Tasks::default());
    assert!(refusal(none.answer(Request::OpenConfig)).contains("without a file"));
}

#[test]
fn sockets_are_made_beside_the_control_socket_and_where_the_configuration_says() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut helper = helper(dir.path());
    let listener = bind(&mut helper, &socket(dir.path(), "a.sock")).unwrap();
    UnixStream::connect(dir.path().join("a.sock")).unwrap();
    drop(listener);

    let named = socket(other.path(), "named.sock");
    assert!(bind(&mut helper, &named).unwrap_err().contains("may not listen"));
    helper.answer(Request::Allow { paths: vec![named.clone()] });
    bind(&mut helper, &named).unwrap();
    let elsewhere = [
        socket(other.path(), "b.sock"),
        socket(dir.path(), "deeper/b.sock"),
        socket(dir.path(), &format!("../{}", other.path().file_name().unwrap().display())),
        socket(dir.path(), ".."),
    ];
    for path in elsewhere {
        assert!(bind(&mut helper, &path).unwrap_err().contains("may not listen"), "{path}");
        let connects = helper.answer(Request::Connect { path });
        assert!(refusal(connects).contains("may not connect"));
    }
}

#[test]
fn a_front_end_that_listens_and_sends_slow_descriptors_keeps_nobody_waiting() {
    struct Waits(mpsc::Receiver<()>);
    impl Drop for Waits {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mut helper = helper(dir.path());
    let path = socket(dir.path(), "theirs.sock");
    let listener = UnixListener::bind(path.as_path()).unwrap();
    let began = Instant::now();
    let (Answer::Done, Some(given)) = helper.answer(Request::Connect { path: path.clone() }) else {
        panic!("it listens")
    };
    let (slow, _reader) = lingering();
    send_with(listener.accept().unwrap().0, b"x", slow).unwrap();
    // The sender's copy is closed by now.
    std::thread::sleep(Duration::from_millis(200));
    // weir has ended the connection before, and this copy is the last one.
    drop(given);
    assert!(began.elapsed() < Duration::from_secs(60), "a close would take ten minutes");

    // A party whose closes do not end gets no further connection, and other parties still do.
    let party = Party::new("theirs");
    let (_end, waits) = mpsc::channel();
    party.close(Waits(waits));
    (1..FOREIGN_CLOSES_MAX).for_each(|_| party.close(()));
    helper.parties.insert(path.clone(), party);
    let again = helper.answer(Request::Connect { path });
    assert!(matches!(again, (Answer::Errno(errno), None) if errno == Errno::AGAIN.raw_os_error()));
    let other = socket(dir.path(), "other.sock");
    let _listener = UnixListener::bind(other.as_path()).unwrap();
    assert!(matches!(helper.answer(Request::Connect { path: other }), (Answer::Done, Some(_))));
}

#[test]
fn what_another_weir_has_left_is_gone_on_with_if_it_is_that_socket() {
    // A directory that nobody else may change, and one that all may.
    [0o700, 0o777].into_iter().for_each(is_gone_on_with_in);
}

fn is_gone_on_with_in(mode: u32) {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
    let (left, file) = (socket(dir.path(), "a.sock"), socket(dir.path(), "file"));
    let elsewhere = socket(other.path(), "a.sock");
    let _listeners = [&left, &elsewhere].map(|path| UnixListener::bind(path.as_path()).unwrap());
    std::fs::write(file.as_path(), "keep me").unwrap();
    let id = |path: &SocketPath| {
        let found = std::fs::symlink_metadata(path.as_path()).unwrap();
        (found.dev(), found.ino())
    };
    let mut helper = helper(dir.path());
    let mut adopt = |path: &SocketPath, file| {
        helper.answer(Request::Adopt { path: path.clone(), access: SocketMode::OWNER.into(), file })
    };
    let errno = |answer| match answer {
        (Answer::Errno(errno), None) => Errno::from_raw_os_error(errno),
        other => panic!("{other:?}"),
    };
    assert_eq!(errno(adopt(&left, id(&elsewhere))), Errno::NOENT);
    assert_eq!(errno(adopt(&file, id(&file))), Errno::EXIST, "it is no socket");
    assert!(refusal(adopt(&elsewhere, id(&elsewhere))).contains("may not"), "it is elsewhere");
    assert!(matches!(adopt(&left, id(&left)), (Answer::Done, None)));
    helper.answer(Request::Remove { paths: vec![left.clone()] });
    assert!(!left.as_path().exists() && elsewhere.as_path().exists());
}

#[test]
fn a_socket_goes_to_users_that_were_named_before_and_never_to_root() {
    let dir = tempfile::tempdir().unwrap();
    let (own, (user, group)) = ((geteuid().as_raw(), getegid().as_raw()), far());
    let mut helper = helper(dir.path());
    let mut bind = |user: Option<&str>, group: Option<&str>| {
        let user = user.map(|it| it.parse().unwrap());
        let group = group.map(|it| it.parse().unwrap());
        let access = Access { mode: SocketMode::OWNER, user, group };
        let path = socket(dir.path(), "a.sock");
        let made = match helper.answer(Request::Bind { path: path.clone(), access }) {
            (Answer::Bound { .. }, Some(_)) => {
                let found = std::fs::metadata(path.as_path()).unwrap();
                Ok((found.uid(), found.gid()))
            }
            (Answer::Refused { message, .. }, None) => Err(message),
            other => panic!("{other:?}"),
        };
        let is_there = path.as_path().exists();
        assert_eq!(is_there, made.is_ok());
        helper.answer(Request::Remove { paths: vec![path] });
        made
    };
    // Neither name is in a file of this host.
    assert_eq!(bind(Some("weir-test-far"), None), Ok((user, own.1)));
    assert_eq!(bind(None, Some("weir-test-far")), Ok((own.0, group)));
    assert_eq!(bind(None, Some(&group.to_string())), Ok((own.0, group)));
    for user in ["root", "0", "54321", "nobody"] {
        let said = bind(Some(user), None).unwrap_err();
        assert!(said.contains(&format!("had no user {user} for a socket")), "{said}");
    }
    let said = bind(None, Some("root")).unwrap_err();
    assert!(said.contains("had no group root") && said.contains("the number"), "{said}");
}

#[test]
fn accounts_of_all_interfaces_fit_into_messages() {
    let name = |number: u32| format!("{number:0>width$}", width = USER_NAME_LEN_MAX);
    let all = || (0..u32::try_from(PORTS_MAX).unwrap()).map(|it| u32::MAX - it);
    let users = all().map(|it| (name(it).parse().unwrap(), it)).collect();
    let groups = all().map(|it| (name(it).parse().unwrap(), it)).collect();
    let mut accounts = Accounts { users, groups, ..Accounts::default() };
    let (mut left, (a, b)) = (accounts.clone(), UnixStream::pair().unwrap());
    for accounts in accounts.take_named() {
        wire::send(a.as_fd(), &Request::Name { accounts }, None).unwrap();
        let (request, _) = wire::receive::<Request>(b.as_fd()).unwrap().unwrap();
        let Request::Name { accounts } = request else { panic!("{request:?}") };
        left.users.retain(|name, user| accounts.users.get(name) != Some(user));
        left.groups.retain(|name, group| accounts.groups.get(name) != Some(group));
    }
    assert!(!left.is_any() && !accounts.is_any());
}

#[test]
fn only_what_it_has_made_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut helper = helper(dir.path());
    let (made, found) = (socket(dir.path(), "a.sock"), socket(dir.path(), "found"));
    std::fs::write(found.as_path(), "keep me").unwrap();
    let listener = bind(&mut helper, &made).unwrap();
    for path in [&made, &found] {
        helper.answer(Request::Remove { paths: vec![path.clone()] });
    }
    drop(listener);
    assert!(!made.as_path().exists() && found.as_path().exists());
    assert!(bind(&mut helper, &found).unwrap_err().contains("not a socket"));
}

#[test]
fn front_ends_that_listen_are_connected_to() {
    let dir = tempfile::tempdir().unwrap();
    let mut helper = helper(dir.path());
    let path = socket(dir.path(), "front");
    let connect = Request::Connect { path: path.clone() };
    let nobody = rustix::io::Errno::NOENT.raw_os_error();
    assert!(matches!(helper.answer(connect), (Answer::Errno(code), None) if code == nobody));
    let listener = UnixListener::bind(path.as_path()).unwrap();
    let (answer, stream) = helper.answer(Request::Connect { path });
    assert!(matches!(answer, Answer::Done) && stream.is_some());
    listener.accept().unwrap();
}

#[test]
fn only_uplinks_interfaces_are_set_and_only_virtual_processors_placed() {
    let dir = tempfile::tempdir().unwrap();
    let mut helper = helper(dir.path());
    let interface = "eth8".parse().unwrap();
    let gather = helper.answer(Request::Gather { interface, uplink_ns: 1_000 });
    assert!(refusal(gather).contains("no uplink's interface"));
    let interface = "eth8".parse().unwrap();
    let follow = helper.answer(Request::Follow { interface, cpus: [(0, 0)].into() });
    assert!(refusal(follow).contains("no uplink's interface"));

    let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let pin = |thread, cpus: BTreeSet<u16>| Request::Pin { thread, cpus };
    for thread in [this, 1, u32::MAX] {
        assert!(refusal(helper.answer(pin(thread, [0].into()))).contains("virtual processors"));
    }
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let vcpu = std::thread::Builder::new().name("CPU 0/KVM".into()).spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
        let _ = ended.recv();
    });
    let thread = told.recv().unwrap();
    assert!(matches!(helper.answer(pin(thread, [0].into())), (Answer::Done, None)));
    assert!(matches!(helper.answer(pin(thread, [].into())), (Answer::Errno(_), None)));
    drop(end);
    vcpu.unwrap().join().unwrap();
}

#[test]
fn frr_is_told_of_configured_networks_and_of_no_others() {
    use rustix::io::Errno;
    let dir = tempfile::tempdir().unwrap();
    let mut helper = helper(dir.path());
    let mut announce = |vni| {
        let all = vec![Announcement { vni, mac: [2, 0, 0, 0, 0, 1], sticky: Some(true) }];
        match helper.answer(Request::Announce { all }) {
            (Answer::Errno(code), None) => Errno::from_raw_os_error(code),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(announce(101), Errno::PERM);
    assert_eq!(announce(100), Errno::NODEV, "no weir has its TAP open");
    let mut announce = |vni| {
        let ip = std::net::IpAddr::from([10, 0, 0, 1]);
        let all = vec![OwnerAnnouncement { vni, ip, mac: Some([2, 0, 0, 0, 0, 1]) }];
        match helper.answer(Request::AnnounceOwners { all }) {
            (Answer::Errno(code), None) => Errno::from_raw_os_error(code),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((announce(101), announce(100)), (Errno::PERM, Errno::NODEV));
    let mut none = Serving::new(Tasks::default());
    let daemon = FrrDaemon::Zebra;
    assert!(refusal(none.answer(Request::ConnectFrr { daemon })).contains("not permitted"));
}

#[test]
fn its_tasks_are_what_they_were_when_it_was_confined() {
    let dir = tempfile::tempdir().unwrap();
    let mut helper = helper(dir.path());
    // The effect of `Request::Confine`. Confining this process would end the other tests.
    helper.confined = true;
    let path = socket(Path::new("/tmp"), "weir.sock");
    assert!(refusal(helper.answer(Request::Allow { paths: vec![path] })).contains("has begun"));
    assert!(refusal(helper.answer(Request::Begin(Tasks::default()))).contains("has begun"));
    assert!(refusal(helper.answer(Request::Confine)).contains("has begun"));
    let name = Request::Name { accounts: Accounts::default() };
    assert!(refusal(helper.answer(name)).contains("has begun"));
}

#[test]
fn messages_come_whole_with_one_descriptor_or_not_at_all() {
    let (a, b) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let path: SocketPath = "/run/a.sock".parse().unwrap();
    let (lent, _other) = UnixStream::pair().unwrap();
    wire::send(a.as_fd(), &Request::Remove { paths: vec![path] }, Some(lent.as_fd())).unwrap();
    let (request, descriptor) = wire::receive::<Request>(b.as_fd()).unwrap().unwrap();
    assert!(matches!(request, Request::Remove { .. }) && descriptor.is_some());

    let cpus = (0..u16::MAX).collect();
    assert!(wire::send(a.as_fd(), &Request::Pin { thread: 1, cpus }, None).is_err());
    for bytes in [
        &b"{"[..],
        b"\"Confine\" ",
        b"{\"Bind\":{\"path\":\"a\",\"mode\":\"0600\"}}",
        &[b'['; 70_000],
    ] {
        rustix::io::write(&a, bytes).unwrap();
        let received = wire::receive::<Request>(b.as_fd());
        assert_eq!(received.is_ok(), bytes.starts_with(b"\"Confine"), "{received:?}");
    }
    drop(a);
    assert!(wire::receive::<Request>(b.as_fd()).unwrap().is_none());
}
