//! Words of a shell text that are easily passed over: arrays, environments that are lost on the way, and launches that stand
//! inside of other words.

use super::{
    Question, check,
    on_a_host::{on, said},
    read::{ReadError, read},
};
use crate::{
    diagnose::sample::Host,
    model::{
        case::WrongKind,
        launch::{LaunchCheck, LaunchOutcome},
    },
    profile::Profiles,
};

const V: &str =
    "export NCCL_P2P_DISABLE=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0";
const L: &str = "vllm serve M -tp 2 --disable-custom-all-reduce";

fn bad() -> Host {
    let mut host = Host::root_complex(2);
    host.direct_wrong(WrongKind::Zeroed, |_| true);
    host
}

fn outcome(text: &str, wanted: LaunchOutcome) -> LaunchCheck {
    let answer = on(&bad(), text);
    assert_eq!(answer.outcome(), wanted, "{text}: {answer:#?}");
    answer
}

fn uses_peers(text: &str) {
    let answer = outcome(text, LaunchOutcome::Problem);
    let used = said(&answer, "failed-peers-in-use").is_some();
    assert!(used, "{text}: {answer:#?}");
}

fn open(text: &str) {
    outcome(text, LaunchOutcome::NotJudged);
}

fn safe(text: &str) {
    outcome(text, LaunchOutcome::NothingWrong);
}

/// bash puts the first word of an array where no index is asked for.
#[test]
fn arrays_are_what_bash_makes_of_them() {
    const A: &str = "ARGS=(--tensor-parallel-size=2 --disable-custom-all-reduce)";
    for word in [
        "$ARGS",
        "${ARGS}",
        "${ARGS[0]}",
        "\"${ARGS[0]}\"",
        "\"$ARGS\"",
    ] {
        uses_peers(&format!("{V}\n{A}\nvllm serve M {word}"));
    }
    for word in [
        "\"${ARGS[@]}\"",
        "${ARGS[@]}",
        "${ARGS[*]}",
        "${ARGS[0]} ${ARGS[1]}",
    ] {
        safe(&format!("{V}\n{A}\nvllm serve M {word}"));
    }
    // One word, which no number of ranks is.
    let one = on(&bad(), &format!("{V}\n{A}\nvllm serve M \"${{ARGS[*]}}\""));
    assert_ne!(one.outcome(), LaunchOutcome::NothingWrong, "{one:#?}");
    // Elements that are set by themselves are not followed.
    open(&format!(
        "{V}\n{A}\nARGS[1]=--enforce-eager\nvllm serve M -tp 2 \"${{ARGS[@]}}\""
    ));
    // A plain variable is split as before.
    safe(&format!(
        "{V}\nARGS='-tp 2 --disable-custom-all-reduce'\nvllm serve M $ARGS"
    ));
}

#[test]
fn what_drops_a_variable_drops_it() {
    for drop in [
        "f(){ unset NCCL_P2P_DISABLE; }; f",
        "f(){ export NCCL_P2P_DISABLE=0; }; f",
        "printf -v NCCL_P2P_DISABLE 0",
        "printf -vNCCL_P2P_DISABLE %s 0",
        "for v in NCCL_P2P_DISABLE; do unset $v; done",
        "for v in A NCCL_P2P_DISABLE; do export $v=0; done",
        "unset $WHAT",
        "declare $WHAT=0",
    ] {
        open(&format!("{V}\n{drop}\n{L}"));
    }
    // A function that stands before what it undoes.
    open(&format!("f(){{ unset NCCL_P2P_DISABLE; }}\n{V}\nf\n{L}"));
    open(&format!(
        "function f {{\n unset NCCL_P2P_DISABLE\n}}\n{V}\nf\n{L}"
    ));
    for drop in [
        "declare +x NCCL_P2P_DISABLE",
        "typeset +x NCCL_P2P_DISABLE",
        "export -n NCCL_P2P_DISABLE",
        "unset -v NCCL_P2P_DISABLE",
    ] {
        uses_peers(&format!("{V}\n{drop}\n{L}"));
    }
    for before in [
        "apptainer exec --nv --cleanenv i.sif",
        "apptainer exec --containall i.sif",
        "singularity exec -e i.sif",
        "singularity run -C docker://img",
        "exec -c",
    ] {
        uses_peers(&format!("{V}\n{before} {L}"));
    }
    open(&format!(
        "{V}\nray job submit --address http://h:8265 -- {L}"
    ));
    open(&format!("{V}\ntmux new -d {L}"));
    // A variable is not exported by declaring it.
    let two = "export VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0";
    uses_peers(&format!("declare NCCL_P2P_DISABLE=1\n{two}\n{L}"));
    for kept in [
        format!("{V}\nexec {L}"),
        format!("{V}\napptainer exec --nv i.sif {L}"),
        format!(
            "export APPTAINERENV_NCCL_P2P_DISABLE=1 APPTAINERENV_VLLM_ALLREDUCE_USE_SYMM_MEM=0 APPTAINERENV_VLLM_ALLREDUCE_USE_FLASHINFER=0\napptainer exec -e i.sif {L}"
        ),
        format!(
            "apptainer exec -e --env NCCL_P2P_DISABLE=1,VLLM_ALLREDUCE_USE_SYMM_MEM=0 --env VLLM_ALLREDUCE_USE_FLASHINFER=0 i.sif {L}"
        ),
        format!("declare -x NCCL_P2P_DISABLE=1\n{two}\n{L}"),
        format!("{V}\nlog() {{ echo \"$1\"; }}\nlog start\n{L}"),
        format!("{V}\nfor v in HF_HOME HF_TOKEN; do unset $v; done\n{L}"),
    ] {
        safe(&kept);
    }
}

fn all(text: &str) -> Result<Vec<LaunchCheck>, ReadError> {
    let profiles = Profiles::embedded().unwrap();
    let host = bad();
    let launches = read("x.sh", text, None, &profiles)?;
    Ok(host.judge(|e| {
        let group = host.group();
        let question = Question {
            evidence: Some(e),
            candidates: &group,
            ..Question::default()
        };
        let judged = launches.iter().map(|one| check(one, &question, &profiles));
        judged.map(Result::unwrap).collect()
    }))
}

/// Launches inside of words are read where that is simple.
#[test]
fn launches_in_words_are_read() {
    for text in [
        "eval \"vllm serve M -tp 2\"",
        "bash <<EOF\nvllm serve M -tp 2\nEOF",
        "bash -s <<'EOF'\nvllm serve M -tp 2\nEOF\necho done",
        "bash <<< 'vllm serve M -tp 2'",
        "cat >e.sh <<EOF\nvllm serve M -tp 2\nEOF\nbash e.sh",
        "cat <<'EOF' > ./e.sh\nvllm serve M -tp 2\nEOF\nchmod +x e.sh\n./e.sh",
        "tee e.sh <<EOF\nvllm serve M -tp 2\nEOF\nsource e.sh",
        "echo 'vllm serve M -tp 2' > e.sh; sh e.sh",
        "env -S 'A=1 vllm serve M -tp 2'",
        "env -S'A=1 vllm serve M' -tp 2",
        "sbatch --wrap 'vllm serve M -tp 2'",
        "tmux new -d \"vllm serve M -tp 2\"",
    ] {
        let found = all(text).unwrap();
        assert_eq!(found.len(), 1, "{text}: {found:#?}");
        let used = said(&found[0], "failed-peers-in-use");
        assert!(used.is_some(), "{text}: {found:#?}");
        // What stands outside is handed on as to any child, but for the server of tmux.
        let sound = text.replace("-tp 2", "-tp 2 --disable-custom-all-reduce");
        let beside = all(&format!("{V}\n{sound}")).unwrap();
        let wanted = match text.starts_with("tmux") {
            true => LaunchOutcome::NotJudged,
            false => LaunchOutcome::NothingWrong,
        };
        assert_eq!(beside[0].outcome(), wanted, "{text}: {beside:#?}");
    }
    // A document fills variables in, unless its end is quoted.
    let text =
        format!("TP=2\nbash <<EOF\n{V}\nvllm serve M -tp $TP --disable-custom-all-reduce\nEOF");
    let filled = all(&text).unwrap();
    assert_eq!(
        filled[0].outcome(),
        LaunchOutcome::NothingWrong,
        "{filled:#?}"
    );
}

/// Those that are not read are named, beside a launch that was and alone.
#[test]
fn launches_that_are_not_read_are_named() {
    for (text, words) in [
        ("./start_big.sh -tp 8", "./start_big.sh"),
        ("bash start_big.sh --tensor-parallel-size 8", "start_big.sh"),
        ("screen -S x -X stuff 'vllm serve M -tp 2\\n'", "'screen'"),
        ("tmux send-keys -t x 'vllm serve M -tp 2' Enter", "'tmux'"),
        ("alias v='vllm serve M -tp 2'", "alias 'v'"),
        ("at now <<EOF\nvllm serve M -tp 2\nEOF", "document"),
        ("watch 'vllm serve M -tp 2'", "'watch'"),
    ] {
        let beside = all(&format!("{V}\n{L}\n{text}")).unwrap();
        let told = beside[0].not_judged.iter().any(|n| n.contains(words));
        assert!(told, "{text}: {beside:#?}");
        assert_eq!(beside[0].outcome(), LaunchOutcome::NotJudged, "{text}");
        let alone = all(text).unwrap_err().to_string();
        assert!(
            alone.contains("no launch found") && alone.contains(words),
            "{alone}"
        );
    }
    for text in [
        "echo 'starting vllm serve M'",
        "./download.sh --model M",
        "curl -d '{\"prompt\": \"a b\"}' http://localhost:8000",
        "cat > notes.txt <<EOF\nvllm serve M -tp 2\nEOF",
    ] {
        safe(&format!("{V}\n{text}\n{L}"));
    }
}
