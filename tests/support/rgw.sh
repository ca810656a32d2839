#!/bin/bash
# Starts a Ceph RADOS gateway (one monitor, one OSD in memory, radosgw) on ADDRESS (127.0.0.1) and returns when it listens.
# usage: rgw.sh DIR S3_PORT MON_PORT ACCESS_KEY SECRET_KEY [ADDRESS]
# Stop it by killing the pids in DIR/run/*.pid. Needs the Debian packages radosgw, ceph-mon, ceph-osd.
set -e
D=$1; PORT=$2; MP=$3; HOST=${6:-127.0.0.1}; mkdir -p "$D"/{run,mon,osd,log}; chmod 700 "$D"
FSID=$(cat /proc/sys/kernel/random/uuid)
cat > "$D/ceph.conf" <<C
[global]
fsid = $FSID
mon host = [v2:127.0.0.1:$MP/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = $D/keyring
run dir = $D/run
pid file = $D/run/\$type.\$id.pid
log file = $D/log/\$type.\$id.log
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon max pg per osd = 1000
ms bind msgr1 = false
ms bind ipv6 = false
# Without these four a start takes 13 s and a request 50 ms.
paxos propose interval = 0.05
paxos min wait = 0.01
mon tick interval = 1
ms tcp nodelay = true
osd heartbeat interval = 1
osd tick interval = 0.2
admin socket = $D/run/\$cluster-\$name.\$pid.asok
[mon]
mon data = $D/mon
mon initial members = a
[osd]
keyring = $D/osd/keyring
osd data = $D/osd
osd objectstore = memstore
memstore device bytes = 4294967296
osd journal = $D/osd/journal
osd max object name len = 256
[client]
rgw frontends = beast endpoint=$HOST:$PORT tcp_nodelay=1
rgw data = $D/rgw
rgw dns name =
rgw thread pool size = 16
rgw run sync thread = false
rgw bucket quota ttl = 0
C
export CEPH_CONF=$D/ceph.conf
ceph-authtool --create-keyring "$D/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null 2>&1
ceph-authtool "$D/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
monmaptool --create --fsid "$FSID" --addv a "[v2:127.0.0.1:$MP]" "$D/monmap" >/dev/null
ceph-mon --mkfs -i a --monmap "$D/monmap" --keyring "$D/keyring"
ceph-mon -i a --keyring "$D/keyring"
ceph --connect-timeout 20 osd new "$(tee "$D/osduuid" < /proc/sys/kernel/random/uuid)" >/dev/null
ceph auth get-or-create osd.0 mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' -o "$D/osd/keyring"
ceph-osd -i 0 --mkfs --osd-uuid "$(cat "$D/osduuid")" >/dev/null 2>&1
ceph osd crush add osd.0 1.0 host=local root=default >/dev/null 2>&1
ceph-osd -i 0
radosgw-admin user create --uid t --display-name t --access-key "$4" --secret "$5" >/dev/null
radosgw -n client.admin
for _ in $(seq 200); do (exec 3<>"/dev/tcp/$HOST/$PORT") 2>/dev/null && exit 0; sleep 0.05; done; exit 1
