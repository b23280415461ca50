//! Descriptors whose close takes as long as the sender likes, on each socket of weir.
//!
//! A process that reads a socket, or closes one with unread messages, closes the descriptors in it. The last close of
//! a TCP socket that lingers (socket(7), `SO_LINGER`) waits for a peer that never reads.

use std::{
    collections::VecDeque,
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{Mutex, mpsc},
    time::Duration,
};

use rustix::{io::Errno, net::sockopt::set_socket_linger};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        guest::{Guest, Plan},
        link::{Link, VERSION, message, one_region, region, request, table},
    },
    measure::switch::{CALLER, CALLS, EVILS, KEEPER},
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        slow_on_a_second_connection,
        "connects to its own interface a second time, with descriptors that close slowly"
    ),
    attack!(
        slow_on_a_second_connection_that_hangs_up,
        "the same, and is gone before weir looks at it"
    ),
    attack!(slow_on_second_connections_of_20_sockets, "the same at 20 sockets at once"),
    attack!(
        slow_in_the_backlog_of_an_interface_that_is_removed,
        "has an interface removed while connections with such descriptors wait at its socket",
        administers: "each change has its log lines"
    ),
    attack!(slow_in_each_message, "sends such a descriptor as all that messages take"),
    attack!(slow_in_messages_that_take_none, "sends it with messages that take no descriptor"),
    attack!(slow_and_too_many, "sends more of them than a message may have"),
    attack!(slow_behind_half_a_message, "sends them with a message that never ends"),
    attack!(
        slow_behind_a_message_that_ends_the_session,
        "sends them behind a message for which weir hangs up"
    ),
    attack!(slow_as_shared_memory, "shares such a socket as memory, and as the log of dirty pages"),
    attack!(slow_calls_replaced, "gives a ring one such call descriptor after the other"),
    attack!(
        slow_in_sockets_within_sockets,
        "packs such a descriptor into sockets, each sent over the next, as deep as they may lie"
    ),
    attack!(
        slow_in_a_circle_of_sockets,
        "packs it into two sockets that hold each other, which only the kernel's collector finds"
    ),
    attack!(slow_in_a_request, "sends it with a request to the control socket"),
    attack!(slow_behind_a_request, "sends it behind a request, before the answer"),
    attack!(slow_unread_by_the_api, "sends it behind a request after which weir reads no more"),
    attack!(slow_in_a_body, "sends it with a request's body"),
    attack!(slow_in_a_request_by_a_reader, "sends it with a request, as who may read", as_reader),
    attack!(
        slow_behind_a_request_by_a_reader,
        "sends it behind a request, as who may read",
        as_reader
    ),
    attack!(
        slow_unread_by_the_api_of_a_reader,
        "sends it where weir reads no more, as who may read",
        as_reader
    ),
    attack!(
        slow_in_a_body_by_a_reader,
        "sends it with a request's body, as who may read",
        as_reader
    ),
    attack!(
        slow_on_all_connections_of_a_reader,
        "sends it on forty connections at once, as who may read",
        as_reader
    ),
];

/// Attacks on sockets that only options open.
pub const OF_OPTIONS: &[Attack] = &[
    attack!(slow_at_an_agents_socket, "sends such descriptors as an agent of 19 machines"),
    attack!(slow_with_an_agents_line, "sends them with an agent's greeting, and behind it"),
    attack!(slow_on_an_agents_second_connection, "connects as an agent that is there already"),
    attack!(
        slow_at_the_keepers_socket,
        "connects to the keeper, sends such descriptors, and stays"
    ),
    attack!(
        slow_behind_half_a_packet_of_the_keepers,
        "sends the keeper bytes that are no packet, with such descriptors, and hangs up"
    ),
    attack!(
        slow_from_a_monitor_that_listens,
        "has weir connect to it, and sends such descriptors back",
        as_another_user
    ),
];

/// Longest time of a close while the peer lives. The peer ends with the attacker.
const LINGER: Duration = Duration::from_secs(60);
/// Number of descriptors whose close is delayed at the same time: the attacker's limit for one attempt.
const TOGETHER: usize = 64;

/// Sockets whose last close waits, with peers that read nothing.
#[derive(Debug)]
pub struct Slow {
    listener: TcpListener,
}

/// The peers of the sockets that weir closes, oldest first. A close ends when its peer is dropped.
static PEERS: Mutex<VecDeque<TcpStream>> = Mutex::new(VecDeque::new());

impl Slow {
    /// Makes no such socket yet.
    pub fn new() -> Strike<Self> {
        Ok(Self { listener: TcpListener::bind("127.0.0.1:0")? })
    }

    /// A new socket. Its sender drops it after sending, so that weir has the last copy.
    fn one(&self) -> Strike<OwnedFd> {
        let socket = TcpStream::connect(self.listener.local_addr()?)?;
        let (peer, _) = self.listener.accept()?;
        set_socket_linger(&socket, Some(LINGER))?;
        let socket = OwnedFd::from(socket);
        rustix::io::ioctl_fionbio(&socket, true)?;
        while rustix::io::write(&socket, &[0; 65_536]).is_ok() {}
        rustix::io::ioctl_fionbio(&socket, false)?;
        let mut peers = PEERS.lock().map_err(|_| Errno::BUSY)?;
        peers.push_back(peer);
        if peers.len() > TOGETHER {
            peers.pop_front();
        }
        Ok(socket)
    }

    /// Sends `bytes` with such a socket.
    pub fn send(&self, link: &Link, bytes: &[u8]) -> Strike {
        let (slow, bytes) = (self.one()?, bytes.to_vec());
        let link = Link::of(link.as_fd().try_clone_to_owned()?);
        let (sender, sent) = mpsc::channel();
        // If weir has closed its copy already, the last copy is here, and its close waits.
        std::thread::spawn(move || {
            let result = link.raw(&bytes, &[slow.as_fd()]);
            drop(link);
            let _ = sender.send(result);
            drop(slow);
        });
        sent.recv().map_err(|_| Errno::IO)?
    }
}

/// Closes `held` on a thread for which nothing waits.
fn let_go(held: impl Send + 'static) {
    std::thread::spawn(move || drop(held));
}

/// A little longer than weir waits for the first front end's end before it refuses a second one.
const GRACE: Duration = Duration::from_millis(1500);

/// Keeps all descriptors for a while, so that the test sees that others are served meanwhile.
fn stay(field: &Field) {
    field.struck();
    std::thread::sleep(Duration::from_secs(1));
}

/// Waits until weir has refused the waiting front ends, and then stays.
fn turned_away(field: &Field) {
    std::thread::sleep(GRACE);
    stay(field);
}

fn call(ring: u64) -> Vec<u8> {
    message(request::SET_VRING_CALL, VERSION, &ring.to_le_bytes())
}

/// A session at `path`, and a second connection with a descriptor in its queue.
fn second(slow: &Slow, path: &Path) -> Strike<(Link, Link)> {
    let first = Link::connect(path)?;
    first.ask(request::GET_FEATURES)?;
    let second = Link::connect(path)?;
    slow.send(&second, &call(0))?;
    Ok((first, second))
}

fn slow_on_a_second_connection(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let _links = second(&slow, &field.evil(0))?;
    turned_away(field);
    Ok(())
}

fn slow_on_a_second_connection_that_hangs_up(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let (_first, second) = second(&slow, &field.evil(0))?;
    drop(second);
    turned_away(field);
    Ok(())
}

fn slow_on_second_connections_of_20_sockets(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let links = (0..EVILS).map(|number| second(&slow, &field.evil(number)));
    let _links = links.collect::<Strike<Vec<_>>>()?;
    turned_away(field);
    Ok(())
}

fn slow_in_the_backlog_of_an_interface_that_is_removed(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let path = field.socket("guest");
    let vif = |verb| -> Strike {
        let mut command = field.weir();
        let output =
            command.args(["vif", verb, "guest", "--control"]).arg(field.control()).output()?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { crate::front::harm(error) }
    };
    vif("add")?;
    // weir serves the connection that it has accepted, and the others wait.
    let links = (0..8).map(|_| -> Strike<Link> {
        let link = Link::connect(&path)?;
        slow.send(&link, &call(0))?;
        Ok(link)
    });
    let _links = links.collect::<Strike<Vec<_>>>()?;
    vif("del")?;
    stay(field);
    Ok(())
}

/// Bodies of messages that take a descriptor.
fn taking() -> [(u32, Vec<u8>); 9] {
    let shared = region(0, 1 << 20, 1 << 40, 0);
    let area = [1 << 12, 0].map(u64::to_le_bytes).concat();
    [
        (request::SET_MEM_TABLE, table(std::slice::from_ref(&shared))),
        (request::ADD_MEM_REG, one_region(&shared)),
        (request::SET_LOG_BASE, area.clone()),
        (request::SET_LOG_FD, vec![]),
        (request::SET_VRING_KICK, vec![0; 8]),
        (request::SET_VRING_CALL, vec![0; 8]),
        (request::SET_VRING_ERR, vec![0; 8]),
        (request::SET_BACKEND_REQ_FD, vec![]),
        (request::SET_INFLIGHT_FD, [area, vec![1, 0, 0, 1]].concat()),
    ]
}

fn slow_in_each_message(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let mut links = Vec::new();
    for (number, (request, body)) in taking().into_iter().enumerate() {
        let link = Link::connect(&field.evil(number))?;
        slow.send(&link, &message(request, VERSION, &body))?;
        links.push(link);
    }
    stay(field);
    Ok(())
}

fn slow_in_messages_that_take_none(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let none = [(request::GET_FEATURES, 0), (request::SET_OWNER, 0), (request::SET_VRING_NUM, 8)];
    let mut links = Vec::new();
    for (number, (request, len)) in none.into_iter().enumerate() {
        let link = Link::connect(&field.evil(number))?;
        slow.send(&link, &message(request, VERSION, &vec![0; len]))?;
        links.push(link);
    }
    stay(field);
    Ok(())
}

fn slow_and_too_many(field: &Field) -> Strike {
    let (slow, link) = (Slow::new()?, field.link()?);
    let many = (0..40).map(|_| slow.one()).collect::<Strike<Vec<_>>>()?;
    let fds: Vec<BorrowedFd<'_>> = many.iter().map(AsFd::as_fd).collect();
    link.raw(&call(0), &fds)?;
    let_go(many);
    stay(field);
    Ok(())
}

fn slow_behind_half_a_message(field: &Field) -> Strike {
    let (slow, link) = (Slow::new()?, field.link()?);
    slow.send(&link, &call(0)[..7])?;
    stay(field);
    drop(link);
    stay(field);
    Ok(())
}

fn slow_behind_a_message_that_ends_the_session(field: &Field) -> Strike {
    let (slow, link) = (Slow::new()?, field.link()?);
    let held: Vec<_> = (0..4).map(|_| slow.one()).collect::<Strike<_>>()?;
    link.tell_u64(request::SET_FEATURES, u64::MAX)?;
    for fd in &held {
        // weir may be faster.
        let _ = link.raw(&call(0), &[fd.as_fd()]);
    }
    let_go(held);
    stay(field);
    Ok(())
}

fn slow_as_shared_memory(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let guest = field.plain()?;
    let body = one_region(&region(1 << 40, 1 << 20, 1 << 45, 0));
    slow.send(&guest.link, &message(request::ADD_MEM_REG, VERSION, &body))?;
    let other = Guest::attach(&field.evil(1), Plan::default())?;
    let log = [1 << 16, 0].map(u64::to_le_bytes).concat();
    slow.send(&other.link, &message(request::SET_LOG_BASE, VERSION, &log))?;
    stay(field);
    Ok(())
}

fn slow_calls_replaced(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let guest = field.plain()?;
    for _ in 0..4 {
        // weir may disconnect at the last descriptor.
        let _ = slow.send(&guest.link, &call(1));
    }
    stay(field);
    Ok(())
}

/// Nests `fd` in a socket's queue, and that socket in another one's, `depth` times.
fn packed(fd: OwnedFd, depth: usize) -> Strike<OwnedFd> {
    let mut fd = fd;
    for _ in 0..depth {
        let (near, far) = UnixStream::pair()?;
        let near = Link::of(near.into());
        near.raw(&[0], &[fd.as_fd()])?;
        fd = far.into();
    }
    Ok(fd)
}

fn slow_in_sockets_within_sockets(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let first = field.link()?;
    first.ask(request::GET_FEATURES)?;
    let second = field.link()?;
    // The kernel permits a nesting of four (`MAX_RECURSION_LEVEL`).
    let deep = packed(slow.one()?, 3)?;
    second.raw(&call(0), &[deep.as_fd()])?;
    let other = packed(slow.one()?, 3)?;
    first.raw(&call(0), &[other.as_fd()])?;
    let_go((deep, other));
    turned_away(field);
    Ok(())
}

fn slow_in_a_circle_of_sockets(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let first = field.link()?;
    first.ask(request::GET_FEATURES)?;
    let second = field.link()?;
    let (a, b) = UnixStream::pair()?;
    let (a, b) = (Link::of(a.into()), Link::of(b.into()));
    let held = slow.one()?;
    a.raw(&[0], &[a.as_fd(), b.as_fd(), held.as_fd()])?;
    b.raw(&[0], &[a.as_fd(), b.as_fd()])?;
    second.raw(&call(0), &[a.as_fd()])?;
    let_go((a, b, held));
    turned_away(field);
    Ok(())
}

const LOOK: &str = "GET /v1/switch HTTP/1.1\r\nhost: weir\r\n\r\n";
const LAST: &str = "GET /v1/switch HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n";
const BODY: &str =
    "POST /v1/configuration/difference HTTP/1.1\r\nhost: weir\r\ncontent-length: 9\r\n\r\n";

/// Connections to the API, each with a descriptor at some part of its request.
fn at_the_api(field: &Field, connections: usize, parts: &[(&str, bool)]) -> Strike {
    let slow = Slow::new()?;
    let mut links = Vec::new();
    for _ in 0..connections {
        let link = Link::connect(&field.control())?;
        for (bytes, with) in parts {
            let sent = if *with {
                slow.send(&link, bytes.as_bytes())
            } else {
                link.raw(bytes.as_bytes(), &[])
            };
            if sent.is_err() && links.is_empty() {
                return sent;
            }
        }
        links.push(link);
    }
    stay(field);
    Ok(())
}

fn slow_in_a_request(field: &Field) -> Strike {
    at_the_api(field, 4, &[(LOOK, true)])
}

fn slow_behind_a_request(field: &Field) -> Strike {
    at_the_api(field, 4, &[(LOOK, false), (LOOK, true)])
}

fn slow_unread_by_the_api(field: &Field) -> Strike {
    at_the_api(field, 4, &[(LAST, false), ("x", true)])
}

fn slow_in_a_body(field: &Field) -> Strike {
    at_the_api(field, 4, &[(BODY, false), ("[switch]\n", true)])
}

fn slow_in_a_request_by_a_reader(field: &Field) -> Strike {
    slow_in_a_request(field)
}

fn slow_behind_a_request_by_a_reader(field: &Field) -> Strike {
    slow_behind_a_request(field)
}

fn slow_unread_by_the_api_of_a_reader(field: &Field) -> Strike {
    slow_unread_by_the_api(field)
}

fn slow_in_a_body_by_a_reader(field: &Field) -> Strike {
    slow_in_a_body(field)
}

fn slow_on_all_connections_of_a_reader(field: &Field) -> Strike {
    at_the_api(field, 40, &[(LOOK, true)])
}

/// An agent's first message.
pub const GREETING: &str = "{\"message\":\"hello\",\"version\":1,\"session\":1,\"agent\":\"1\",\
                            \"kernel\":\"6\",\"interfaces\":[]}\n";

/// Agents of other machines are still served: weir disconnects one that breaks the rules.
fn others_are_heard(field: &Field) -> Strike {
    let other = Link::connect(&field.agent(EVILS / 2))?;
    other.raw(b"no message\n", &[])?;
    other.hung_up("an agent's line that is no message")
}

fn slow_at_an_agents_socket(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let mut links = Vec::new();
    for number in (0..EVILS).filter(|number| *number != EVILS / 2) {
        let link = Link::connect(&field.agent(number))?;
        slow.send(&link, b"{")?;
        links.push(link);
    }
    others_are_heard(field)?;
    stay(field);
    Ok(())
}

fn slow_with_an_agents_line(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let (with, behind) = (Link::connect(&field.agent(0))?, Link::connect(&field.agent(1))?);
    slow.send(&with, GREETING.as_bytes())?;
    behind.raw(GREETING.as_bytes(), &[])?;
    slow.send(&behind, b"{}\n")?;
    others_are_heard(field)?;
    stay(field);
    Ok(())
}

fn slow_on_an_agents_second_connection(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let first = Link::connect(&field.agent(0))?;
    first.raw(GREETING.as_bytes(), &[])?;
    let second = Link::connect(&field.agent(0))?;
    slow.send(&second, GREETING.as_bytes())?;
    others_are_heard(field)?;
    stay(field);
    Ok(())
}

fn slow_at_the_keepers_socket(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let link = packets(&field.dir().join(KEEPER))?;
    slow.send(&link, &[0; 64])?;
    stay(field);
    Ok(())
}

fn slow_behind_half_a_packet_of_the_keepers(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let link = packets(&field.dir().join(KEEPER))?;
    let _ = slow.send(&link, b"?");
    let _ = slow.send(&link, b"?");
    drop(link);
    stay(field);
    Ok(())
}

/// A connection to a socket of type `SOCK_SEQPACKET` or, failing that, `SOCK_STREAM`.
fn packets(path: &Path) -> Strike<Link> {
    Link::connect_packets(path).or_else(|_| Link::connect(path))
}

fn slow_from_a_monitor_that_listens(field: &Field) -> Strike {
    let slow = Slow::new()?;
    let path = field.dir().join(CALLS).join(CALLER);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    let (weir, _) = listener.accept()?;
    let link = Link::of(weir.into());
    slow.send(&link, &call(0)[..7])?;
    slow.send(&link, &call(0))?;
    stay(field);
    drop(link);
    let _ = std::fs::remove_file(&path);
    Ok(())
}
