"""What people write behind ``pipe:`` is understood as the shell and the tool would, or left alone."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples

from forebay_proxy.wire.commands.curl import unglobbed
from forebay_proxy.wire.commands.shell import NotRewritten, split_command
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

AUTH = ("Authorization", "Bearer hf_x")
BASIC = ("Authorization", "Basic dTpw")  # u:p


def understood(text: str) -> Source:
    source = parse_source(text)
    assert source is not None, f"left alone: {text}"
    return source


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        # plain URLs
        ("http://h/x.tar", "http://h/x.tar"),
        ("HTTPS://H/x.tar", "https://h/x.tar"),
        ("s3://b/k.tar", "s3://b/k.tar"),
        ("s3://b/k.tar?endpoint=http://h:9000", "s3://b/k.tar?endpoint=http://h:9000"),
        ("gs://b/k.tar", "gs://b/k.tar"),
        ("hf://datasets/o/n@main/k.tar", "hf://datasets/o/n@main/k.tar"),
        ("file:///nas/k.tar", "file:///nas/k.tar"),
        ("file:/nas/k.tar", "file:///nas/k.tar"),
        ("https://huggingface.co/datasets/o/n/resolve/main/k.tar", "https://huggingface.co/datasets/o/n/resolve/main/k.tar"),
        # aws s3 cp, as open_clip, DataComp and others write it
        ("pipe:aws s3 cp s3://b/k.tar -", "s3://b/k.tar"),
        ("pipe: aws s3 cp --quiet s3://b/k.tar -", "s3://b/k.tar"),
        ("pipe:aws s3 cp s3://b/k.tar - ", "s3://b/k.tar"),
        ("pipe:aws s3 cp s3://b/k.tar - || true", "s3://b/k.tar"),
        ("pipe:aws s3 cp s3://b/k.tar - 2>/dev/null || true", "s3://b/k.tar"),
        ("pipe:aws s3 cp s3://b/k.tar - < /dev/null", "s3://b/k.tar"),
        ("pipe:aws s3 cp s3://b/k.tar - | pv -ptrb", "s3://b/k.tar"),
        ("pipe:aws s3 cp s3://b/k.tar - 2> /dev/null | pv -q -i 5 || :", "s3://b/k.tar"),
        ("pipe:/usr/local/bin/aws s3 cp s3://b/k.tar /dev/stdout", "s3://b/k.tar"),
        ("pipe:aws --endpoint-url http://h:9000 s3 cp s3://b/k.tar -", "s3://b/k.tar?endpoint=http://h:9000"),
        ("pipe:aws s3 cp --endpoint-url=http://h:9000 s3://b/k.tar -", "s3://b/k.tar?endpoint=http://h:9000"),
        ("pipe:aws s3 cp s3://b/k.tar - --endpoint-url http://h:9000", "s3://b/k.tar?endpoint=http://h:9000"),
        ("pipe:aws s3 cp s3://b/k.tar - --no-sign-request", "s3://b/k.tar?unsigned=1"),
        ("pipe:aws --profile p --region eu-west-1 s3 cp s3://b/k.tar -", "s3://b/k.tar?profile=p&region=eu-west-1"),
        ("pipe:aws s3 cp --request-payer requester s3://b/k.tar -", "s3://b/k.tar?requester_pays=1"),
        ("pipe:aws s3 cp --request-payer s3://b/k.tar -", "s3://b/k.tar?requester_pays=1"),
        ("pipe:aws s3 cp --cli-read-timeout 300 --cli-connect-timeout=60 --only-show-errors --no-progress s3://b/k -", "s3://b/k"),
        ("pipe:aws s3 cp 's3://b/a b%20.tar' -", "s3://b/a b%20.tar"),
        ("pipe:aws s3 cp \"s3://b/it's.tar\" -", "s3://b/it's.tar"),
        ("pipe:aws s3 cp s3://b/a\\ b.tar -", "s3://b/a b.tar"),
        ("pipe:aws s3 cp s3://b/{000..999}.tar -", "s3://b/{000..999}.tar"),
        ("pipe:aws s3 cp s3://b/what?region=x -", "s3://b/what?region=x?"),
        ("pipe:AWS_PROFILE=p AWS_REGION=r aws s3 cp s3://b/k -", "s3://b/k?profile=p&region=r"),
        ("pipe:AWS_ENDPOINT_URL=http://a AWS_ENDPOINT_URL_S3='http://h:9000' aws s3 cp s3://b/k -", "s3://b/k?endpoint=http://h:9000"),
        ("pipe:AWS_PROFILE=p aws s3 cp --profile q s3://b/k -", "s3://b/k?profile=q"),
        ("pipe:AWS_MAX_ATTEMPTS=10 aws s3 cp s3://b/k -", "s3://b/k"),
        # aws s3api
        ("pipe:aws s3api get-object --bucket b --key a/k.tar /dev/stdout", "s3://b/a/k.tar"),
        ("pipe:aws s3api get-object --bucket b --key=k --version-id v1 --request-payer requester /dev/stdout",
         "s3://b/k?requester_pays=1&versionId=v1"),
        # s5cmd, s3cmd
        ("pipe:s5cmd cat s3://b/k.tar", "s3://b/k.tar"),
        ("pipe:s5cmd --endpoint-url http://h:9000 --no-sign-request -r 5 cat s3://b/k.tar",
        "s3://b/k.tar?endpoint=http://h:9000&unsigned=1"),
        ("pipe:s5cmd --profile p cat --concurrency 8 s3://b/k.tar", "s3://b/k.tar?profile=p"),
        ("pipe:s5cmd cat --raw 's3://b/a*b.tar'", "s3://b/a*b.tar"),
        ("pipe:S3_ENDPOINT_URL=http://h:9000 s5cmd cat s3://b/k", "s3://b/k?endpoint=http://h:9000"),
        ("pipe:s3cmd get s3://b/k.tar -", "s3://b/k.tar"),
        ("pipe:s3cmd get --quiet s3://b/k.tar - || true", "s3://b/k.tar"),
        ("pipe:s3cmd -q get --force s3://b/k.tar -", "s3://b/k.tar"),
        # Google
        ("pipe:gsutil cat gs://b/k.tar", "gs://b/k.tar"),
        ("pipe:gsutil -q -m cat gs://b/k.tar || true", "gs://b/k.tar"),
        ("pipe:gsutil -o GSUtil:parallel_process_count=1 -o GSUtil:parallel_thread_count=1 -m cat gs://b/k.tar", "gs://b/k.tar"),
        ("pipe:gcloud storage cat gs://b/k.tar", "gs://b/k.tar"),
        ("pipe:gcloud alpha storage cat gs://b/k.tar --verbosity=error", "gs://b/k.tar"),
        # curl and wget
        ("pipe:curl -s -L https://h/x.tar", "https://h/x.tar"),
        ("pipe:curl -sL https://h/x.tar || true", "https://h/x.tar"),
        ("pipe:curl --connect-timeout 30 --retry 30 --retry-delay 2 -f -s -L 'https://h/x.tar?a=1&b=2'", "https://h/x.tar?a=1&b=2"),
        ("pipe:curl -fsSL --retry 3 --retry-all-errors --retry-connrefused --http1.1 https://h/x.tar?download=true -o -",
         "https://h/x.tar?download=true"),
        ("pipe:curl -m60 -so- -X GET --url https://h/x.tar", "https://h/x.tar"),
        ("pipe:curl -sL https://h/x-{0000}.tar", "https://h/x-0000.tar"),
        ("pipe:curl -sL https://h/x-\\{1\\}.tar", "https://h/x-1.tar"),
        ("pipe:curl -sLg 'https://h/x-{1}.tar'", "https://h/x-%7B1%7D.tar"),
        ("pipe:curl -s http://[::1]:8080/x.tar", "http://[::1]:8080/x.tar"),
        ("pipe:wget -O - -q --tries=0 --retry-connrefused --waitretry=1 --read-timeout=20 --timeout=15 -t 0 --continue https://h/x.tar",
         "https://h/x.tar"),
        ("pipe:wget -qO- https://h/x.tar", "https://h/x.tar"),
        ("pipe:wget https://h/x.tar -nv -O /dev/stdout", "https://h/x.tar"),
        # files
        ("pipe:cat /lustre/x.tar", "file:///lustre/x.tar"),
        ("pipe:cat '/lustre/a b%.tar' 2>/dev/null", "file:///lustre/a%20b%25.tar"),
    ],
)  # fmt: skip
def test_what_people_write(text: str, origin: str) -> None:
    """Each form seen in the wild names its origin, with no header where none was written."""
    source = understood(text)
    assert (source.url.text(), source.headers, source.text) == (origin, (), text)


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("pipe:curl -s -L https://h/x -H 'Authorization:Bearer hf_x'", (AUTH,)),
        ('pipe:curl -s -L -H "Authorization: Bearer hf_x" https://h/x', (AUTH,)),
        ("pipe:curl --header=Authorization:\\ Bearer\\ hf_x https://h/x", (AUTH,)),
        ("pipe:curl --oauth2-bearer hf_x https://h/x", (AUTH,)),
        ("pipe:curl -u u:p https://h/x", (BASIC,)),
        ("pipe:curl -su u:p https://h/x", (BASIC,)),
        ("pipe:curl https://u:p@h/x", (BASIC,)),
        ("pipe:curl https://%75:p@h/x", (BASIC,)),
        ("https://u:p@h/x", (BASIC,)),
        ("pipe:curl -u u:p -H 'Authorization: Bearer hf_x' https://a:b@h/x", (AUTH,)),
        ("pipe:curl -H 'X-Api-Key: k' -b 'a=1; b=2' https://h/x", (("X-Api-Key", "k"), ("Cookie", "a=1; b=2"))),
        ("pipe:curl -b a=b -H 'cookie: c=d' https://h/x", (("cookie", "c=d"),)),
        ("pipe:curl -H 'Accept: */*' -H 'Cache-Control: no-cache' https://h/x", ()),
        ("pipe:wget -qO- --header 'Authorization: Bearer hf_x' https://h/x", (AUTH,)),
        ("pipe:wget -qO- --user=u --password=p https://h/x", (BASIC,)),
    ],
)
def test_credentials_become_headers(text: str, headers: tuple[tuple[str, str], ...]) -> None:
    """What proves the asker travels beside the URL, never in it, and never into a repr."""
    source = understood(text)
    assert source.headers == headers
    assert source.url.text().endswith("://h/x")
    assert "hf_x" not in repr(source)
    assert "dTpw" not in repr(source)


@pytest.mark.parametrize(
    "text",
    [
        # not ours at all
        "", "-", "x.tar", "/nas/x.tar", "./x.tar", "c:/x", "ais://b/k", "az://c/k", "ftp://h/x", "pipe:", "pipe: ", "http:x", "s3:b",
        "pipe:ssh host cat /x.tar", "pipe:rclone cat r:b/k", "pipe:hdfs dfs -cat /x", "pipe:ais get ais://b/k -", "pipe:zcat /x.tar.gz",
        # programs of their own
        "pipe:cat /x.tar | zstd -d", "pipe:cat /x.tar; true", "pipe:cat /x.tar && true", "pipe:cat /x.tar &", "pipe:cat $X",
        "pipe:cat /$(x)",
        "pipe:cat `x`", "pipe:cat \"/a$X\"", "pipe:cat /x.tar || echo", "pipe:cat /x.tar > /y", "pipe:cat /x.tar 2>&1", "pipe:(cat /x.tar)",
        "pipe:cat /x.tar 2>/dev/nullx", "pipe:aws s3 cp s3://b/k - 2>/dev/null--quiet", "pipe:aws s3 cp s3://b/k -2>/dev/null",
        "pipe:cat '/x'2>/dev/null", "pipe:cat /x.tar | pv /y", "pipe:cat /x.tar | pv | pv", "pipe:cat /x.tar || true || true",
        "pipe:cat /x.tar || true | pv", "pipe:cat /x*.tar", "pipe:cat /x?.tar", "pipe:cat /[x].tar", "pipe:cat ~/x.tar", "pipe:cat /x #c",
        "pipe:cat /x\ntrue", "pipe:cat 'x", "pipe:cat \"x", "pipe:cat /x\\", "pipe:X=1 cat /x", "pipe:X=1", "pipe:eval cat /x",
        "pipe:timeout 60 cat /x", "pipe:cat /x 2>", "pipe:" + "a" * 40000,
        # cat
        "pipe:cat x.tar", "pipe:cat /x /y", "pipe:cat -n /x", "pipe:cat -", "pipe:cat /a/../b",
        # aws
        "pipe:aws s3 cp --recursive s3://b/k -", "pipe:aws s3 cp - s3://b/k", "pipe:aws s3 cp /x s3://b/k",
        "pipe:aws s3 cp s3://b/k /tmp/x",
        "pipe:aws s3 ls s3://b", "pipe:aws s3 cp --no-verify-ssl s3://b/k -", "pipe:aws s3 cp --sse-c-key k s3://b/k -", "pipe:aws",
        "pipe:aws s3 cp --ca-bundle x s3://b/k -", "pipe:aws s3 cp s3://b/k - --profile", "pipe:aws s3 cp --unknown s3://b/k -",
        "pipe:AWS_ACCESS_KEY_ID=x aws s3 cp s3://b/k -", "pipe:aws s3 cp s3://arn:aws:s3:r:1:accesspoint/n/k -",
        "pipe:aws s3 cp s3://b/a/../k -", "pipe:aws s3 cp s3://b/k - extra", "pipe:aws s3 cp --endpoint-url h:9000 s3://b/k -",
        "pipe:aws s3 cp --key x s3://b/k -", "pipe:aws s3api get-object --bucket b --key k /tmp/x",
        "pipe:aws s3api get-object --bucket b --key k --range bytes=0-9 /dev/stdout", "pipe:aws s3api head-object --bucket b --key k",
        "pipe:S3_ENDPOINT_URL=http://h aws s3 cp s3://b/k -", "pipe:aws -- s3 cp s3://b/k -",
        # s5cmd, s3cmd, Google
        "pipe:s5cmd cat 's3://b/*.tar'", "pipe:s5cmd ls s3://b", "pipe:s5cmd cat s3://b/k s3://b/l",
        "pipe:s5cmd --no-verify-ssl cat s3://b/k",
        "pipe:s5cmd --credentials-file x cat s3://b/k", "pipe:s3cmd -c cfg get s3://b/k -", "pipe:s3cmd --host=h get s3://b/k -",
        "pipe:s3cmd get s3://b/k /tmp/x", "pipe:s3cmd put - s3://b/k", "pipe:gsutil cat 'gs://b/*'", "pipe:gsutil cat gs://b/k#1",
        "pipe:gsutil cat -r 0-9 gs://b/k", "pipe:gsutil -u proj cat gs://b/k", "pipe:gsutil -o Credentials:x=y cat gs://b/k",
        "pipe:gsutil cat s3://b/k", "pipe:gsutil cp gs://b/k -", "pipe:gcloud storage cp gs://b/k -", "pipe:gcloud auth list",
        "pipe:gcloud storage cat --account a gs://b/k",
        # curl: bytes, route, trust, or another tool's business
        "pipe:curl -k https://h/x", "pipe:curl -x http://p https://h/x", "pipe:curl --cacert c https://h/x", "pipe:curl -r 0-9 https://h/x",
        "pipe:curl --compressed https://h/x", "pipe:curl -A ua https://h/x", "pipe:curl -i https://h/x", "pipe:curl -I https://h/x",
        "pipe:curl -o f https://h/x", "pipe:curl -O https://h/x", "pipe:curl -X POST https://h/x", "pipe:curl -d a=b https://h/x",
        "pipe:curl https://h/x https://h/y", "pipe:curl h/x", "pipe:curl ftp://h/x", "pipe:curl -u user https://h/x",
        "pipe:curl -b jar https://h/x",
        "pipe:curl -H 'Range: bytes=0-9' https://h/x", "pipe:curl -H @file https://h/x", "pipe:curl -H 'Authorization;' https://h/x",
        "pipe:curl -H 'Accept:' https://h/x", "pipe:curl -H 'X-Forwarded-For: a' https://h/x", "pipe:curl -H 'Host: a' https://h/x",
        "pipe:curl -H Authorization:Bearer hf_x https://h/x", "pipe:curl 'https://h/{a,b}'", "pipe:curl 'https://h/[1-3]'",
        "pipe:curl https://h/{}",
        "pipe:curl https://h/x?a&b", "pipe:curl http://127.1/x", "pipe:curl --limit-rate 1M https://h/x", "pipe:curl -s https://h/x -o",
        "pipe:curl -K c",
        "pipe:curl --retry=3x=4 --nonsense https://h/x", "pipe:curl -n https://h/x", "pipe:wget -qO f https://h/x",
        "pipe:wget --no-check-certificate -O - https://h/x", "pipe:wget -i list -O -", "pipe:wget -qO- -e robots=off https://h/x",
    ],
)  # fmt: skip
def test_left_alone(text: str) -> None:
    """What would change a byte, a route or a trust, and whatever is not known, is opened as it always was."""
    assert parse_source(text) is None


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("pipe:aws s3 cp --quiet s3://b/{00000..00099}.tar", "pipe:aws s3 cp s3://bucket/shard.tar -"),
        ("pipe:aws s3 cp s3:///k -", "s3://bucket/path"),
        ("pipe:aws s3 cp s3://b -", "s3://bucket/path"),
        ("pipe:aws s3api get-object --bucket b /dev/stdout", "--bucket and --key"),
        ("pipe:s5cmd cat", "pipe:s5cmd cat s3://"),
        ("pipe:s3cmd get s3://b/k", "pipe:s3cmd get s3://bucket/shard.tar -"),
        ("pipe:gsutil cat", "pipe:gsutil cat gs://"),
        ("pipe:gcloud storage cat gs://", "gs://bucket/path"),
        ("pipe:curl -s -L", "pipe:curl -s -L https://"),
        ("pipe:wget -q https://h/x", "-O -"),
        ("pipe:wget -qO-", "wget needs a URL"),
        ("pipe:cat", "cat needs a file"),
        ("s3://b", "names no object"),
        ("http://h:x/", "1 to 65535"),
    ],
)
def test_slips_are_told_with_their_mend(text: str, mend: str) -> None:
    """A known command that cannot work anywhere is an error, which says what to write."""
    with pytest.raises(InvalidShardUrl, match="(?i)" + mend.replace("?", "[?]")):
        parse_source(text)


def test_variables_outweigh_in_order() -> None:
    """A flag beats a variable, the specific variable the general one."""
    assert understood("pipe:AWS_DEFAULT_REGION=a AWS_REGION=b aws s3 cp s3://b/k -").url.options() == {"region": "b"}


@pytest.mark.skipif(shutil.which("sh") is None, reason="no sh to compare with")
@settings(max_examples=examples(150), deadline=None)
@given(st.text(alphabet="ab/:=-%{},.@+ '\"\\", max_size=25))
def test_words_are_those_of_the_shell(text: str) -> None:
    """Where the command is understood at all, sh splits and unquotes it into the same words."""
    try:
        ours = split_command("true " + text).words
    except NotRewritten:
        return
    script = f'f() {{ for word; do printf "%s\\n" "$word"; done; }}\nf true {text}'
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert list(ours) == shell.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://h/{0}-{a b}.tar", "http://h/0-a b.tar"),
        ("http://u@[::1]/{x}", "http://u@[::1]/x"),
        ("http://h/\\[1\\]", "http://h/[1]"),
        ("http://h/", "http://h/"),
    ],
)
def test_single_alternatives_are_what_curl_takes_away(url: str, plain: str) -> None:
    """``{one}`` is one; this is what doubled braces leave behind."""
    assert unglobbed(url) == plain


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl to compare with")
@pytest.mark.parametrize("path", ["x-{0000}.tar", "{a}{b}", "\\{a\\}", "{a,b}", "[1-2]", "{}", "a}b", "{a{b}}", "[", "]", "\\[1\\]"])
def test_globbing_is_curls(path: str) -> None:
    """Where curl asks once, we name the same path; where it asks twice or refuses, the command is left alone."""
    asked = subprocess.run(
        ["curl", "-s", "-o", os.devnull, "-w", "%{url_effective}\\n", "--path-as-is", "file:///nowhere/" + path],
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    try:
        ours = unglobbed("file:///nowhere/" + path)
    except NotRewritten:
        assert len(asked) != 1 or path in ("]", "a}b")  # curl takes a lone closing one as it is; no shard is called that
    else:
        assert asked == [ours]
