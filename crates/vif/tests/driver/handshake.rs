//! Beginning and end of sessions.

use std::os::unix::net::{UnixListener, UnixStream};

use weir_vhost_user::*;
use weir_vif::*;

use crate::backend::{Backend, Config};
use crate::options;

fn codes(requests: &[Request]) -> Vec<RequestCode> {
    requests.iter().map(|request| (*request).into()).collect()
}

#[test]
fn requests_come_in_the_order_of_the_specification() {
    let (backend, socket) = Backend::echo(&Config::default());
    drop(Vif::over(socket, &options()).unwrap());
    let report = backend.join().remove(0);
    use Request::*;
    let ring = [SetVringNum, SetVringBase, SetVringAddr, SetVringErr, SetVringCall, SetVringKick];
    let mut expected = vec![
        GetFeatures,
        GetProtocolFeatures,
        SetProtocolFeatures,
        GetQueueNum,
        SetOwner,
        SetStatus,
        SetFeatures,
        SetStatus,
        GetStatus,
        GetMaxMemSlots,
        AddMemReg,
    ];
    expected.extend(ring);
    expected.extend(ring);
    expected.extend([SetVringEnable, SetVringEnable, SetStatus]);
    // At its end, the driver stops its rings.
    expected.extend([GetVringBase, GetVringBase]);
    assert_eq!(report.requests, codes(&expected));
    assert_eq!(report.status, 0b1111, "DRIVER_OK and all before it");
    let one_pair = options().features - Features::MQ - Features::MTU;
    assert_eq!(Features(report.features), one_pair);
}

#[test]
fn containers_are_agreed_on_by_both_sides_or_not_at_all() {
    let bit = 1u64 << VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS;
    for (offered, wanted) in [(false, false), (false, true), (true, false), (true, true)] {
        let plain = Config::default();
        let protocol = plain.protocol | if offered { bit } else { 0 };
        let (backend, socket) = Backend::echo(&Config { protocol, ..plain });
        let vif = Vif::over(socket, &Options { containers: wanted, ..options() }).unwrap();
        assert_eq!(vif.containers(), offered && wanted);
        drop(vif);
        let report = backend.join().remove(0);
        assert_eq!(report.protocol & bit != 0, offered && wanted);
    }
}

#[test]
fn a_back_end_without_protocol_features_is_served() {
    let config =
        Config { features: Features::ALL - Features::PROTOCOL_FEATURES, ..Config::default() };
    let (backend, socket) = Backend::echo(&config);
    drop(Vif::over(socket, &options()).unwrap());
    let report = backend.join().remove(0);
    for absent in [
        Request::SetProtocolFeatures,
        Request::GetQueueNum,
        Request::SetVringEnable,
        Request::SetStatus,
        Request::AddMemReg,
    ] {
        assert!(!report.requests.contains(&absent.into()), "{absent}");
    }
    assert!(report.requests.contains(&Request::SetMemTable.into()));
}

#[test]
fn the_in_band_notification_bit_is_never_accepted() {
    let config = Config { protocol: u64::MAX, ..Config::default() };
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let mut connection = Connection::new(_ours);
    let client = std::thread::spawn(move || Vif::over(theirs, &options()));
    let accepted = loop {
        match connection.receive() {
            Ok(Some(Incoming { request, message, .. })) => match message {
                FrontMessage::GetFeatures => {
                    connection.reply_u64(request, config.features.0).unwrap();
                }
                FrontMessage::GetProtocolFeatures => {
                    connection.reply_u64(request, config.protocol).unwrap();
                }
                FrontMessage::SetProtocolFeatures(accepted) => break accepted,
                other => panic!("{other:?}"),
            },
            Ok(None) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(accepted & (1 << VHOST_USER_PROTOCOL_F_INBAND_NOTIFICATIONS), 0);
    drop(connection);
    let error = client.join().unwrap().unwrap_err();
    assert!(matches!(error, VifError::Handshake { .. }), "{error}");
}

#[test]
fn connects_to_a_listening_back_end_and_accepts_a_connecting_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.sock");
    let listener = UnixListener::bind(&path).unwrap();

    let server = std::thread::spawn(move || (listener.accept().unwrap().0, listener));
    let client = {
        let path = path.clone();
        std::thread::spawn(move || Vif::connect(path, &options()))
    };
    let (socket, listener) = server.join().unwrap();
    let backend = Backend::start(&Config::default(), vec![socket]);
    let vif = client.join().unwrap().unwrap();
    assert_eq!(vif.health().unwrap(), Health::Connected);
    drop(vif);
    backend.join();

    let socket = UnixStream::connect(&path).unwrap();
    let backend = Backend::start(&Config::default(), vec![socket]);
    drop(Vif::accept(&listener, &options()).unwrap());
    backend.join();
}

#[test]
fn nobody_listening_names_the_path() {
    let error = Vif::connect("/nonexistent/weir.sock", &options()).unwrap_err();
    assert!(matches!(error, VifError::Connect { .. }));
    assert!(error.to_string().contains("/nonexistent/weir.sock"));
}

#[test]
fn a_refused_request_is_named_with_its_ring() {
    for (refuse, ring) in [
        (Request::SetOwner, None),
        (Request::SetFeatures, None),
        (Request::AddMemReg, None),
        (Request::SetVringNum, Some(0)),
        (Request::SetVringAddr, Some(0)),
        (Request::SetVringKick, Some(0)),
        (Request::SetVringEnable, Some(0)),
        (Request::SetStatus, None),
    ] {
        let config = Config { refuse: Some(refuse), ..Config::default() };
        let (backend, socket) = Backend::echo(&config);
        let error = Vif::over(socket, &options()).unwrap_err();
        assert!(error.to_string().contains(refuse.name()), "{error}");
        match error {
            VifError::Handshake { step, source: FrontEndError::Refused { status: 1, .. } } => {
                assert_eq!(step, Step { request: refuse, ring });
            }
            other => panic!("{refuse}: {other}"),
        }
        backend.join();
    }
}

#[test]
fn missing_required_features_are_named() {
    let config = Config {
        features: Features::ALL - Features::MRG_RXBUF - Features::CSUM,
        ..Config::default()
    };
    let wanted = Options {
        required: Features::MRG_RXBUF | Features::HOST_TSO4 | Features::EVENT_IDX,
        ..options()
    };
    let (backend, socket) = Backend::echo(&config);
    let error = Vif::over(socket, &wanted).unwrap_err();
    // TSO is offered, but needs checksums.
    let missing = Features::MRG_RXBUF | Features::HOST_TSO4;
    assert!(matches!(error, VifError::Required { missing: m } if m == missing));
    assert!(error.to_string().ends_with("HOST_TSO4|MRG_RXBUF"), "{error}");
    backend.join();
}

#[test]
fn a_legacy_back_end_is_refused() {
    let config = Config { features: Features::ALL - Features::VERSION_1, ..Config::default() };
    let (backend, socket) = Backend::echo(&config);
    let error = Vif::over(socket, &options()).unwrap_err();
    assert!(matches!(error, VifError::Required { missing: Features::VERSION_1 }));
    backend.join();
}

#[test]
fn spec_3_1_1_features_ok_taken_back_ends_the_handshake() {
    let config = Config { refuse_features: true, ..Config::default() };
    let (backend, socket) = Backend::echo(&config);
    let error = Vif::over(socket, &options()).unwrap_err();
    assert!(matches!(error, VifError::FeaturesNotOk { .. }), "{error}");
    backend.join();
}

#[test]
fn more_queue_pairs_than_there_are_is_an_error() {
    let config = Config { queue_pairs: 2, ..Config::default() };
    let wanted = Options { queues: 3, ..options() };
    let (backend, socket) = Backend::echo(&config);
    let error = Vif::over(socket, &wanted).unwrap_err();
    assert!(matches!(error, VifError::QueuePairs { wanted: 3, offered: 2 }));
    backend.join();
}

#[test]
fn options_are_checked_before_a_word_is_said() {
    let bad = |change: fn(&mut Options)| {
        let mut wanted = options();
        change(&mut wanted);
        let (socket, _peer) = UnixStream::pair().unwrap();
        match Vif::over(socket, &wanted).unwrap_err() {
            VifError::Options(error) => error,
            other => panic!("{other}"),
        }
    };
    assert_eq!(bad(|o| o.queues = 0), OptionsError::Queues(0));
    assert_eq!(bad(|o| o.queues = 9), OptionsError::Queues(9));
    assert_eq!(bad(|o| o.queue_size = 100), OptionsError::QueueSize(100));
    assert_eq!(bad(|o| o.queue_size = 4), OptionsError::QueueSize(4));
    let bytes = OptionsError::RxBufferBytes(64);
    assert_eq!(bad(|o| o.rx_buffer_bytes = 64), bytes);
}

#[test]
fn the_mtu_is_told_where_it_can_be() {
    let wanted = Options { mtu: Some(9000), ..options() };
    let (backend, socket) = Backend::echo(&Config::default());
    drop(Vif::over(socket, &wanted).unwrap());
    assert_eq!(backend.join()[0].mtu, Some(9000));

    let config = Config { features: Features::ALL - Features::MTU, ..Config::default() };
    let (backend, socket) = Backend::echo(&config);
    drop(Vif::over(socket, &wanted).unwrap());
    assert_eq!(backend.join()[0].mtu, None);
}

#[test]
fn a_back_end_that_hangs_up_is_noticed() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let watch = theirs.try_clone().unwrap();
    let backend = Backend::start(&Config::default(), vec![theirs]);
    let vif = Vif::over(ours, &options()).unwrap();
    assert_eq!(vif.health().unwrap(), Health::Connected);
    watch.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(vif.health().unwrap(), Health::Disconnected);
    backend.join();
}
