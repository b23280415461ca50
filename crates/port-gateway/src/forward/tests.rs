//! Questions for resolvers that answer or are silent, and answers of impostors.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use weir_engine::clock;
use weir_fabric::{Capacity, Claim, Fdb, Learner, Vid};
use weir_testing::eventually;
use weir_wire::Mac;

use super::*;
use crate::desk::Woken;
use crate::frame::Way;
use crate::names::{Directory, Names, Said};
use crate::stream::tests::a_connection;

const WEIR: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xfe]);

/// A directory without guests.
struct Nobody;

impl Directory for Nobody {
    fn addresses_of(&self, _: &str) -> Option<Vec<IpAddr>> {
        None
    }

    fn vif_of(&self, _: IpAddr) -> Option<String> {
        None
    }
}

fn port(number: u16) -> PortId {
    PortId::new(number).unwrap()
}

fn mac(number: u16) -> Mac {
    let [a, b] = number.to_be_bytes();
    Mac([0x52, 0x54, 0, 1, a, b])
}

/// Guests that ask resolvers through weir.
struct Bench {
    desk: Arc<Desk>,
    forwarder: Forwarder,
    /// Sockets that were made.
    made: Arc<Mutex<Vec<u32>>>,
}

impl Bench {
    /// A bench with these resolvers.
    fn new(resolvers: &[SocketAddr]) -> Self {
        let fdb = Fdb::new(1, Capacity::default());
        for number in 0..200 {
            let learner = Learner { port: port(number), claim: Claim::Dynamic, learn_max: 9 };
            let now_secs = clock::secs(clock::now_ns());
            fdb.learn(Vid::DEFAULT, mac(number), learner, now_secs);
        }
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let desk = Arc::new(Desk::new(Vid::DEFAULT, Arc::new(fdb), None, bell));
        let (made, resolvers) = (Arc::<Mutex<Vec<u32>>>::default(), resolvers.to_vec());
        let turns = Arc::clone(&made);
        let dial = move |turn: u32, means: Means| {
            let which = (turn as usize).checked_rem(resolvers.len());
            if means == Means::Stream {
                let stream = TcpStream::connect(resolvers[which.unwrap_or_default()])?;
                stream.set_nonblocking(true)?;
                return Ok(stream.into());
            }
            lock(&turns).push(turn);
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.connect(resolvers[which.ok_or(io::ErrorKind::NotFound)?])?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        };
        let forwarder = Forwarder::start(Arc::clone(&desk), Box::new(dial), None).unwrap();
        Self { desk, forwarder, made }
    }

    /// A guest's question, with its number.
    fn ask(&self, guest: u16, number: u16, name: &str) -> bool {
        let address = |last| SocketAddr::from(([192, 168, 77, last], 53));
        let way = Way { macs: (WEIR, mac(guest)), from: address(1), to: address(10) };
        self.ask_by(Back::Datagram(way), guest, number, name)
    }

    fn ask_by(&self, back: Back, guest: u16, number: u16, name: &str) -> bool {
        let mut message = Message::new(number, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.queries.push(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        let names = Names::new("internal", vec![], true).unwrap();
        let message = message.to_vec().unwrap();
        let Said::Ask(asked) = names.take(&message, back.room(), &Nobody) else { panic!() };
        self.forwarder.take(Question { from: port(guest), asked, back })
    }

    /// The next answer: the address of its receiver, and the message.
    fn told(&self) -> (Mac, Message) {
        let frame = eventually("an answer", || self.desk.next_answer());
        (Mac(*frame.first_chunk().unwrap()), Message::from_vec(&frame[42..]).unwrap())
    }
}

fn resolver() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// The next question, and the address of the socket that sent it.
fn hear(resolver: &UdpSocket) -> (Message, SocketAddr) {
    let mut bytes = [0; 1500];
    let (len, from) = resolver.recv_from(&mut bytes).unwrap();
    (Message::from_vec(&bytes[..len]).unwrap(), from)
}

fn answer(question: &Message, last: u8) -> Message {
    let mut answer = question.clone().into_response();
    let name = question.queries[0].name.clone();
    let address = A(Ipv4Addr::new(203, 0, 113, last));
    answer.add_answer(Record::from_rdata(name, 60, RData::A(address)));
    answer
}

fn last_of(message: &Message) -> u8 {
    let RData::A(A(address)) = message.answers[0].data else { panic!("{message}") };
    address.octets()[3]
}

#[test]
fn each_guest_is_told_what_it_asked_by_numbers_and_ports_that_nobody_knows() {
    let (resolver, at) = resolver();
    let bench = Bench::new(&[at]);
    let (mut numbers, mut ports) = (Vec::new(), Vec::new());
    for n in 0..100_u8 {
        assert!(bench.ask(n.into(), 7, &format!("host{n}.example.org.")));
        let (question, from) = hear(&resolver);
        numbers.push(question.metadata.id);
        ports.push(from.port());
        resolver.send_to(&answer(&question, n).to_vec().unwrap(), from).unwrap();
        let (who, told) = bench.told();
        assert_eq!((who, told.metadata.id, last_of(&told)), (mac(n.into()), 7, n));
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), DNS_SOCKETS_MAX);
    let near = numbers.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 16).count();
    assert!(near < 5, "{numbers:?}");
    assert_eq!(lock(&bench.made).len(), DNS_SOCKETS_MAX, "and no more sockets than that");
}

#[test]
fn who_is_not_asked_is_not_believed() {
    let (resolver, at) = resolver();
    let bench = Bench::new(&[at]);
    assert!(bench.ask(1, 7, "example.org."));
    let (question, from) = hear(&resolver);
    // An impostor that knows the whole question, and the resolver with another number or for another question.
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.send_to(&answer(&question, 66).to_vec().unwrap(), from).unwrap();
    let mut wrong = answer(&question, 66);
    wrong.metadata.id ^= 1;
    resolver.send_to(&wrong.to_vec().unwrap(), from).unwrap();
    let mut wrong = answer(&question, 66);
    wrong.queries[0].name = Name::from_ascii("example.com.").unwrap();
    resolver.send_to(&wrong.to_vec().unwrap(), from).unwrap();
    resolver.send_to(b"x", from).unwrap();
    resolver.send_to(&answer(&question, 1).to_vec().unwrap(), from).unwrap();
    // A second answer is ignored: no question waits for it.
    resolver.send_to(&answer(&question, 2).to_vec().unwrap(), from).unwrap();
    assert_eq!(last_of(&bench.told().1), 1);
    assert!(bench.ask(1, 8, "example.org."));
    let (question, from) = hear(&resolver);
    resolver.send_to(&answer(&question, 3).to_vec().unwrap(), from).unwrap();
    assert_eq!(last_of(&bench.told().1), 3);
}

#[test]
fn the_next_resolver_is_asked_when_one_is_silent_and_after_that_it_has_failed() {
    let ((silent, first), (speaks, second)) = (resolver(), resolver());
    let bench = Bench::new(&[first, second]);
    assert!(bench.ask(1, 7, "example.org."));
    hear(&silent);
    let (question, from) = hear(&speaks);
    speaks.send_to(&answer(&question, 1).to_vec().unwrap(), from).unwrap();
    assert_eq!(last_of(&bench.told().1), 1);
    // From now on the second resolver is asked first.
    assert!(bench.ask(1, 8, "example.org."));
    let asked = Instant::now();
    hear(&speaks);
    assert!(asked.elapsed() < PATIENCE);
    let (_, told) = bench.told();
    assert_eq!(told.metadata.response_code, ResponseCode::ServFail);
    assert!(asked.elapsed() >= 2 * PATIENCE);
}

#[test]
fn a_resolver_that_is_not_there_is_passed_over_at_once_and_none_at_all_is_a_failure() {
    let (speaks, second) = resolver();
    let (gone, first) = resolver();
    drop(gone);
    let bench = Bench::new(&[first, second]);
    assert!(bench.ask(1, 7, "example.org."));
    let asked = Instant::now();
    hear(&speaks);
    assert!(asked.elapsed() < PATIENCE);

    let bench = Bench::new(&[]);
    for n in 0..100 {
        assert!(bench.ask(1, n, "example.org."));
        assert_eq!(bench.told().1.metadata.response_code, ResponseCode::ServFail);
    }
    let tries = lock(&bench.made).len();
    assert!(tries < 20, "{tries} sockets were asked for");
}

#[test]
fn a_guest_that_asks_without_end_takes_no_other_ones_place() {
    let (resolver, at) = resolver();
    let bench = Bench::new(&[at]);
    // A resolver that reads all questions, and answers only the other guest.
    let other = std::thread::spawn(move || {
        loop {
            let (question, from) = hear(&resolver);
            if question.queries[0].name.to_string().starts_with("other") {
                return resolver.send_to(&answer(&question, 9).to_vec().unwrap(), from).unwrap();
            }
        }
    });
    let ask_all = |guest: u16| (0..200).filter(|n| bench.ask(guest, *n, "example.org.")).count();
    assert_eq!(ask_all(0), DNS_ASKED_PER_VIF_MAX);
    // Many interfaces together leave one place to each of the others.
    let taken: usize = (1..100).map(ask_all).sum();
    assert!(
        taken + DNS_ASKED_PER_VIF_MAX >= DNS_ASKED_MAX && taken < DNS_ASKED_MAX + 100,
        "{taken}"
    );
    assert!(bench.ask(151, 7, "example.org.") && !bench.ask(151, 8, "example.org."));
    assert!(bench.ask(150, 7, "other.example.org."));
    other.join().unwrap();
    let mut told = std::iter::from_fn(|| Some(bench.told())).filter(|(who, _)| *who == mac(150));
    assert_eq!(last_of(&told.next().unwrap().1), 9);
    // Once all have failed, there is room again.
    eventually("all have failed", || (lock(&bench.forwarder.inbox).total == 0).then_some(()));
    assert!(lock(&bench.forwarder.inbox).of.is_empty() && bench.ask(0, 7, "example.org."));
}

/// An answer that is too long for a datagram.
fn long(question: &Message, records: u16) -> Message {
    let mut answer = question.clone().into_response();
    let name = question.queries[0].name.clone();
    for n in 0..records {
        let [high, low] = n.to_be_bytes();
        let address = A(Ipv4Addr::new(10, 0, high, low));
        answer.add_answer(Record::from_rdata(name.clone(), 60, RData::A(address)));
    }
    answer
}

#[test]
fn who_asks_by_a_connection_has_a_long_answer_whole_or_the_short_one_where_there_is_none() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let resolver = UdpSocket::bind(at).unwrap();
    let bench = Bench::new(&[at]);
    let told = || match bench.desk.wait(Some(Instant::now() + Duration::from_secs(60))) {
        Woken::Work(_, mut told, _) => told.pop().expect("an answer").1,
        Woken::End => panic!("nobody ends it"),
    };
    // The resolver answers; is silent; hangs up; has more than there is room for; answers another question.
    for (case, whole) in
        [("answers", true), ("silent", false), ("hangs", false), ("more", false), ("other", false)]
    {
        let stream = a_connection();
        assert!(bench.ask_by(Back::Stream(stream), 1, 7, "example.org."));
        let (question, from) = hear(&resolver);
        let mut short = answer(&question, 3);
        short.metadata.truncation = true;
        resolver.send_to(&short.to_vec().unwrap(), from).unwrap();
        let (mut caller, _) = listener.accept().unwrap();
        let mut length = [0; 2];
        caller.read_exact(&mut length).unwrap();
        let mut asked = vec![0; u16::from_be_bytes(length).into()];
        caller.read_exact(&mut asked).unwrap();
        let mut asked = Message::from_vec(&asked).unwrap();
        assert_eq!(asked.queries[0].name.to_string(), "example.org.");
        if case == "other" {
            asked.metadata.id ^= 1;
        }
        let bytes = long(&asked, if case == "more" { 3_000 } else { 200 }).to_vec().unwrap();
        let all = [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat();
        match case {
            "silent" => {}
            "hangs" => drop(caller),
            // The answer comes in two pieces.
            _ => {
                caller.write_all(&all[..50]).unwrap();
                caller.flush().unwrap();
                caller.write_all(&all[50..]).unwrap();
            }
        }
        let said = Message::from_vec(&told()).unwrap();
        assert_eq!(said.metadata.id, 7, "{case}");
        assert_eq!(said.answers.len() == 200, whole, "{case}");
        assert_eq!(said.metadata.truncation, !whole, "{case}");
    }
    assert_eq!(lock(&bench.forwarder.inbox).total, 0);
}

#[test]
fn a_guest_with_many_long_answers_takes_few_of_the_connections_to_resolvers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let resolver = UdpSocket::bind(at).unwrap();
    let bench = Bench::new(&[at]);
    listener.set_nonblocking(true).unwrap();
    for n in 0..10 {
        assert!(bench.ask_by(Back::Stream(a_connection()), 1, n, "example.org."));
        let (question, from) = hear(&resolver);
        let mut short = answer(&question, 3);
        short.metadata.truncation = true;
        resolver.send_to(&short.to_vec().unwrap(), from).unwrap();
    }
    // Questions beyond the bound are refused at once. The others fail when nobody has answered.
    eventually("all are told", || (lock(&bench.forwarder.inbox).total == 0).then_some(()));
    let calls = std::iter::from_fn(|| listener.accept().ok()).count();
    assert_eq!(calls, DNS_CALLS_PER_VIF_MAX);
}
