#!/bin/busybox sh
# The first program of a machine. Its files are those of the machine that it runs on, read-only,
# under a disk of its own that keeps what changes; its control groups are version 2 alone.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
    insmod "/modules/$module" || echo "machine: module $module was refused"
done </modules/order
mkdir -p /host /disk /system
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
mount -t ext4 /dev/vda /disk
mkdir -p /disk/changed /disk/work /disk/kept
mount -t overlay -o lowerdir=/host,upperdir=/disk/changed,workdir=/disk/work overlay /system
mount -t proc proc /system/proc
mount -t sysfs sysfs /system/sys
mount -t devtmpfs devtmpfs /system/dev
mkdir -p /system/dev/pts /system/dev/shm
mount -t devpts devpts /system/dev/pts
mount -t tmpfs tmpfs /system/dev/shm
mount -t tmpfs tmpfs /system/run
mount -t tmpfs tmpfs /system/tmp
mount -t cgroup2 cgroup2 /system/sys/fs/cgroup
mount --bind /disk/kept /system/mnt
ip link set lo up
cp /script /system/run/script
# As a service manager would: the controllers are delegated, and no process runs in the root.
for controller in cpu memory pids; do
    echo "+$controller" >/system/sys/fs/cgroup/cgroup.subtree_control
done
mkdir /system/sys/fs/cgroup/session
echo $$ >/system/sys/fs/cgroup/session/cgroup.procs
umount /proc /sys 2>/dev/null
exec switch_root /system /bin/sh /run/script
