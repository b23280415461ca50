//! Prints the OpenAPI document of weir's HTTP API: `cargo run -p weir-api --example openapi > docs/openapi.json`.

fn main() {
    println!("{}", weir_api::openapi().to_pretty_json().expect("a document as JSON"));
}
