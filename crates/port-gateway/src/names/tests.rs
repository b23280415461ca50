//! Names of guests, questions that go on, and answers that are not to be believed.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

struct Guests;

impl Directory for Guests {
    fn addresses_of(&self, vif: &str) -> Option<Vec<IpAddr>> {
        match &vif.to_ascii_lowercase()[..] {
            "web0" => Some(vec![ip("192.168.77.10"), ip("fd00:77::10")]),
            "new0" => Some(vec![]),
            // The largest number of addresses of one interface.
            "many.of-them" => Some((1..=16).map(|n| ip(&format!("fd00:77::{n}"))).collect()),
            _ => None,
        }
    }

    fn vif_of(&self, address: IpAddr) -> Option<String> {
        ["web0", "many.of-them"]
            .into_iter()
            .find(|vif| self.addresses_of(vif).unwrap().contains(&address))
            .map(str::to_owned)
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn names() -> Names {
    let subnets = ["192.168.77.0/24", "fd00:77::/64"].map(|net| net.parse().unwrap());
    Names::new("lab.internal", subnets.into(), true).unwrap()
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(0x4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.queries.push(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn with_edns(mut message: Message, payload: u16) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(payload);
    message.edns = Some(edns);
    message
}

fn answer_to(message: &Message) -> Message {
    match names().take(&message.to_vec().unwrap(), None, &Guests) {
        Said::Answer(bytes) => {
            let limit = if message.edns.is_some() { 1232 } else { 512 };
            assert!(bytes.len() <= limit, "{} bytes", bytes.len());
            let answer = Message::from_vec(&bytes).unwrap();
            assert_eq!((answer.metadata.id, &answer.queries), (0x4711, &message.queries));
            assert_eq!(answer.edns.is_some(), message.edns.is_some());
            answer
        }
        other => panic!("{other:?}"),
    }
}

fn code(name: &str, kind: RecordType) -> (ResponseCode, usize) {
    let answer = answer_to(&question(name, kind));
    (answer.metadata.response_code, answer.answers.len())
}

fn asked(message: &Message) -> Asked {
    match names().take(&message.to_vec().unwrap(), None, &Guests) {
        Said::Ask(asked) => asked,
        other => panic!("{other:?}"),
    }
}

#[test]
fn guests_have_names_in_the_domain_and_others_there_do_not() {
    let a = answer_to(&question("Web0.LAB.internal.", RecordType::A));
    assert!(a.metadata.authoritative && a.metadata.recursion_available);
    assert_eq!(a.answers[0].data, RData::A(A("192.168.77.10".parse().unwrap())));
    let aaaa = answer_to(&question("web0.lab.internal.", RecordType::AAAA));
    assert_eq!(aaaa.answers[0].data, RData::AAAA(AAAA("fd00:77::10".parse().unwrap())));
    assert_eq!(code("web0.", RecordType::A), (ResponseCode::NoError, 1));
    assert_eq!(code("web0.lab.internal.", RecordType::ANY), (ResponseCode::NoError, 2));
    assert_eq!(code("web0.lab.internal.", RecordType::MX), (ResponseCode::NoError, 0));
    assert_eq!(code("new0.lab.internal.", RecordType::A), (ResponseCode::NoError, 0));
    assert_eq!(code("lab.internal.", RecordType::SOA), (ResponseCode::NoError, 0));
    assert_eq!(code("web1.lab.internal.", RecordType::A), (ResponseCode::NXDomain, 0));
    assert_eq!(code("www.web0.lab.internal.", RecordType::A), (ResponseCode::NXDomain, 0));
}

#[test]
fn addresses_of_the_network_have_the_names_of_their_guests() {
    let pointed = |name: &str| {
        let answer = answer_to(&question(name, RecordType::PTR));
        answer.answers.first().map(|record| record.data.to_string())
    };
    assert_eq!(pointed("10.77.168.192.in-addr.arpa.").unwrap(), "web0.lab.internal.");
    let six = Name::from(ip("fd00:77::1")).to_string();
    assert_eq!(pointed(&six).unwrap(), "many.of-them.lab.internal.");
    assert_eq!(code("11.77.168.192.in-addr.arpa.", RecordType::PTR), (ResponseCode::NXDomain, 0));
    assert_eq!(code("10.77.168.192.in-addr.arpa.", RecordType::A), (ResponseCode::NoError, 0));
    asked(&question("10.78.168.192.in-addr.arpa.", RecordType::PTR));
    asked(&question("77.168.192.in-addr.arpa.", RecordType::NS));
}

#[test]
fn an_answer_that_is_longer_than_the_guest_takes_is_cut_off() {
    let many = question("many.of-them.lab.internal.", RecordType::AAAA);
    assert!(answer_to(&with_edns(many.clone(), 4096)).answers.len() == 16);
    // Without EDNS, and with a payload size below the minimum of 512 bytes.
    for message in [many.clone(), with_edns(many, 0)] {
        let Said::Answer(bytes) = names().take(&message.to_vec().unwrap(), None, &Guests) else {
            panic!()
        };
        let answer = Message::from_vec(&bytes).unwrap();
        assert!(bytes.len() <= 512);
        assert_eq!(answer.metadata.truncation, answer.answers.is_empty());
    }
}

#[test]
fn what_is_no_question_or_not_for_weir_is_refused_or_ignored() {
    let take = |message: &Message| names().take(&message.to_vec().unwrap(), None, &Guests);
    let mut response = question("web0.lab.internal.", RecordType::A);
    response.metadata.message_type = MessageType::Response;
    assert!(matches!(take(&response), Said::Nothing), "two servers would answer each other");
    assert!(matches!(names().take(&[0; 11], None, &Guests), Said::Nothing));

    let refused = |message: &Message| {
        let Said::Answer(bytes) = take(message) else { panic!("{message}") };
        let answer = Message::from_vec(&bytes).unwrap();
        assert!(answer.answers.is_empty() && !answer.metadata.authoritative);
        answer.metadata.response_code
    };
    let mut status = question("web0.lab.internal.", RecordType::A);
    status.metadata.op_code = OpCode::Status;
    assert_eq!(refused(&status), ResponseCode::NotImp);
    let mut chaos = question("version.bind.", RecordType::TXT);
    chaos.queries[0].query_class = DNSClass::CH;
    assert_eq!(refused(&chaos), ResponseCode::Refused);
    let mut two = question("web0.lab.internal.", RecordType::A);
    two.queries.push(two.queries[0].clone());
    assert_eq!(refused(&two), ResponseCode::FormErr);
    let mut later = with_edns(question("web0.lab.internal.", RecordType::A), 1232);
    later.edns.as_mut().unwrap().set_version(1);
    // For signatures, the same number means something else.
    assert_eq!(u16::from(refused(&later)), u16::from(ResponseCode::BADVERS));
    // A question without recursion would read the resolver's cache.
    let mut idle = question("example.org.", RecordType::A);
    idle.metadata.recursion_desired = false;
    assert_eq!(refused(&idle), ResponseCode::Refused);
    let closed = Names { asks: false, ..names() };
    let bytes = question("example.org.", RecordType::A).to_vec().unwrap();
    let Said::Answer(bytes) = closed.take(&bytes, None, &Guests) else { panic!() };
    assert_eq!(Message::from_vec(&bytes).unwrap().metadata.response_code, ResponseCode::Refused);
}

/// A resolver's answer.
fn says(asked: &Asked, number: u16, change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut said = Message::from_vec(&asked.numbered(number)).unwrap();
    said.metadata.message_type = MessageType::Response;
    let name = said.queries[0].name.clone();
    said.add_answer(Record::from_rdata(name, 60, RData::A(A(Ipv4Addr::new(9, 9, 9, 9)))));
    change(&mut said);
    said.to_vec().unwrap()
}

#[test]
fn of_a_question_nothing_goes_on_but_what_it_asks() {
    let mut message = with_edns(question("Example.ORG.", RecordType::A), 4096);
    message.edns.as_mut().unwrap().set_dnssec_ok(true);
    // A client subnet option (RFC 7871).
    let option = hickory_proto::rr::rdata::opt::EdnsOption::Unknown(8, vec![0, 1, 24, 0, 10, 0, 0]);
    message.edns.as_mut().unwrap().options_mut().insert(option);
    let name = message.queries[0].name.clone();
    message.add_additional(Record::from_rdata(name, 1, RData::A(A(Ipv4Addr::LOCALHOST))));
    let asked = asked(&message);
    let put = Message::from_vec(&asked.numbered(7)).unwrap();
    assert_eq!((put.metadata.id, &put.queries), (7, &message.queries));
    let edns = put.edns.as_ref().unwrap();
    assert!(edns.flags().dnssec_ok && edns.options().as_ref().is_empty());
    assert_eq!((edns.max_payload(), put.additionals.len()), (1232, 0));
}

#[test]
fn an_answer_is_told_under_the_guests_number_and_in_its_letters() {
    let asked = asked(&question("Example.ORG.", RecordType::A));
    let said = says(&asked, 7, |said| {
        said.queries[0].name = Name::from_ascii("example.org.").unwrap();
    });
    let told = Message::from_vec(&asked.answered(7, said).unwrap()).unwrap();
    assert_eq!((told.metadata.id, told.answers.len()), (0x4711, 1));
    assert!(told.queries[0].name.eq_case(&Name::from_ascii("Example.ORG.").unwrap()));
    // An answer that is too long is sent without records, with its TC bit set.
    let long = says(&asked, 7, |said| {
        let record = said.answers[0].clone();
        said.answers.extend(std::iter::repeat_n(record, 60));
    });
    assert!(long.len() > 512);
    let told = Message::from_vec(&asked.answered(7, long).unwrap()).unwrap();
    assert!(told.metadata.truncation && told.answers.is_empty());
    let failed = Message::from_vec(&asked.failed()).unwrap();
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    assert_eq!((failed.metadata.id, failed.metadata.message_type), (0x4711, MessageType::Response));
}

#[test]
fn an_answer_to_another_question_is_not_believed() {
    let asked = asked(&question("example.org.", RecordType::A));
    let right = says(&asked, 7, |_| ());
    assert!(asked.answered(7, right.clone()).is_some());
    assert!(asked.answered(8, right.clone()).is_none());
    let wrong: [fn(&mut Message); 6] = [
        |said| said.queries[0].name = Name::from_ascii("examplf.org.").unwrap(),
        |said| said.queries[0].query_type = RecordType::AAAA,
        |said| said.queries[0].query_class = DNSClass::CH,
        |said| said.queries.clear(),
        |said| said.metadata.message_type = MessageType::Query,
        |said| said.metadata.op_code = OpCode::Notify,
    ];
    for change in wrong {
        assert!(asked.answered(7, says(&asked, 7, change)).is_none());
    }
    for cut in 0..asked.end {
        assert!(asked.answered(7, right[..cut].to_vec()).is_none(), "cut at {cut}");
    }
}

proptest! {
    #[test]
    fn no_message_breaks_anything_or_is_answered_at_length(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        cut in 0..100_usize, at in 0..100_usize, value: u8,
    ) {
        let mut near = with_edns(question("web0.lab.internal.", RecordType::ANY), 512).to_vec().unwrap();
        let place = at % near.len();
        near[place] = value;
        near.truncate(near.len() - cut % near.len());
        for message in [bytes, near] {
            match names().take(&message, None, &Guests) {
                Said::Answer(bytes) => prop_assert!(bytes.len() <= 1232 && bytes[..2] == message[..2]),
                Said::Ask(asked) => {
                    prop_assert!(asked.bytes.len() <= 12 + 255 + 4 + 11);
                    let _ = asked.answered(7, message);
                }
                Said::Nothing => {}
            }
        }
    }

    #[test]
    fn no_answer_breaks_anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let asked = asked(&question("example.org.", RecordType::A));
        let head = asked.numbered(7);
        let mut near = head.clone();
        near.extend(&bytes);
        near[2] |= RESPONSE;
        for said in [bytes, near] {
            if let Some(told) = asked.answered(7, said) {
                prop_assert!(told.len() <= 512);
            }
        }
    }
}
