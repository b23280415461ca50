//! The page, and the protection against other sites.

use super::*;

const INDEX: &str = include_str!("../page/index.html");
const SCRIPT: &str = include_str!("../page/script.js");

/// The head and the body of the answer to one request over the socket.
fn got(served: &Served, line: &str, headers: &str) -> (String, String) {
    let mut stream = served.stream();
    let request = format!("{line} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn each_file_of_the_page_is_there_under_a_policy_that_lets_nothing_else_run() {
    let served = Served::new();
    for (path, kind) in [
        ("/", "text/html"),
        ("/page/script.js", "text/javascript"),
        ("/page/style.css", "text/css"),
        ("/page/icon.svg", "image/svg+xml"),
    ] {
        let (head, _) = got(&served, &format!("GET {path}"), "host: localhost:9101\r\n");
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(head.contains(&format!("content-type: {kind}")), "{path}: {head}");
        let policy = head.lines().find(|it| it.starts_with("content-security-policy: ")).unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert!(INDEX.contains(path.trim_start_matches('/')), "the page asks for {path}");
    }
}

#[test]
fn the_page_has_no_script_or_style_within_and_asks_nobody_else() {
    assert_eq!(
        INDEX.matches("<script").count(),
        INDEX.matches("<script src=\"page/script.js\" defer></script>").count()
    );
    assert!(
        !INDEX.contains("<style")
            && !INDEX.contains("style=\"")
            && !INDEX.split_whitespace().any(|word| word.starts_with("on") && word.contains('='))
    );
    for text in [INDEX, SCRIPT, include_str!("../page/style.css")] {
        let others = text.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !others.contains("http:") && !others.contains("https:") && !others.contains("//cdn")
        );
    }
    for markup in
        ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"]
    {
        assert!(!SCRIPT.contains(markup), "{markup}: what is shown is text");
    }
}

#[test]
fn all_that_the_script_looks_for_is_in_the_page() {
    let ids = SCRIPT.split("by(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut count = 0;
    for id in ids {
        assert!(INDEX.contains(&format!("id=\"{id}\"")), "{id}");
        count += 1;
    }
    assert!(count > 20, "{count}");
}

#[test]
fn names_of_events_and_counters_are_as_everywhere_and_the_state_stands_at_every_width() {
    assert!(!SCRIPT.contains("replaceAll(\"_\""), "a name is what people search for");
    let columns = SCRIPT.split_once("const COLUMNS = [").unwrap().1.split_once("];").unwrap().0;
    let state = columns.lines().find(|line| line.contains("\"state\"")).unwrap();
    for hidden in ["optional", "spare", "least"] {
        assert!(columns.contains(hidden) && !state.contains(hidden), "{hidden}: {state}");
    }
}

#[test]
fn the_page_asks_for_a_token_over_tcp_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!("api_listen = \"{address}\"\napi_token_file = {file:?}");
    let served = Served::with(serving::configured(&text));
    let (_, page) = got(&served, "GET /", "host: localhost\r\n");
    assert!(!page.contains("data-token"));
    let ask = |line: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("{line} HTTP/1.1\r\nhost: {address}\r\n\r\n").as_bytes()).unwrap();
        answer(&mut BufReader::new(&stream)).unwrap()
    };
    let (status, page) = ask("GET /");
    assert!(status == 200 && page.contains("data-token=\"needed\""), "{status} {page}");
    assert_eq!(ask("GET /page/script.js").0, 200);
    assert_eq!(ask("GET /v1/switch").0, 401);
    assert!(
        served.handler.requests.lock().unwrap().is_empty(),
        "the page says nothing of the switch"
    );
}

#[test]
fn what_another_site_has_a_browser_ask_does_not_reach_the_switch() {
    let served = Served::with(serving::configured(""));
    let change = "DELETE /v1/vifs/web0";
    for (status, line, headers) in [
        ("405", "POST /", "host: localhost:9101\r\n"),
        ("421", "GET /v1/vifs", "host: evil.example:9101\r\n"),
        ("421", "GET /", "host: evil.example\r\n"),
        ("421", change, "host: evil.example\r\norigin: http://evil.example\r\n"),
        ("403", change, "host: localhost:9101\r\norigin: http://evil.example\r\n"),
        ("403", change, "host: localhost:9101\r\norigin: null\r\n"),
        ("403", "GET /v1/vifs", "host: localhost:9101\r\nsec-fetch-site: cross-site\r\n"),
    ] {
        let (head, body) = got(&served, line, headers);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{line} {headers}: {head}");
        let problem: Problem = serde_json::from_str(&body).unwrap();
        assert!(problem.help.is_some(), "{body}");
    }
    assert!(served.handler.requests.lock().unwrap().is_empty());
    let (head, _) = got(&served, "GET /v1/vifs", "host: localhost:9101\r\n");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    for header in [
        "x-content-type-options: nosniff",
        "cross-origin-resource-policy: same-origin",
        "cache-control: no-store",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert!(!head.contains("access-control"), "no other site may read it");
}
