//! Prints the JSON schema of workflow files: `docs/reference/workflow.schema.json` is this.
#![expect(clippy::print_stdout, reason = "printing is all it does")]

fn main() {
    println!("{:#}", creel_run::workflow::schema());
}
