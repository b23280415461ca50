//! Prints the OpenAPI document of weir's HTTP API: `cargo run -p weir-api --example openapi > docs/openapi.json`.

fn main() {
    let document = serde_json::to_value(weir_api::openapi()).expect("a document as JSON");
    // A line for each operation and each type.
    print!("{}", weir_testing::document::in_lines(&document, 3));
}
